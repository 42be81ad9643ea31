// `kvarto bench kernels`: runs the rows one by one in google-benchmark and sets them against the machine's rates. The
// one file that includes the library.
#include "cli/bench_kernels.h"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/bench_row.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "format/printable.h"
#include "text/regex.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string filter, target;
  double min_time = 0.1;
  uint32_t repetitions = 5;
  bool json = false;
};

// Keeps the time of each repetition that it is shown.
class Reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) {
        error_ = run.error_message;
      } else if (run.run_type == Run::RT_Iteration && run.iterations > 0) {
        seconds_.push_back(run.cpu_accumulated_time / static_cast<double>(run.iterations));
      }
    }
  }
  Result<double> median_seconds() {
    if (!error_.empty()) return fail(ErrorCode::internal, error_);
    if (seconds_.empty()) return fail(ErrorCode::internal, "google-benchmark reported no run; this is a bug of ours");
    std::ranges::sort(seconds_);
    return seconds_[seconds_.size() / 2];
  }

 private:
  std::string error_;
  std::vector<double> seconds_;
};

// Seconds of one call. CPU time: a kernel is one thread, and others may want the core.
Result<double> time_call(const KernelRow& row, const Flags& flags) {
  ASSIGN_OR_RETURN(const std::function<void()> call, row.scene());
  const auto body = [&](benchmark::State& state) {
    for (auto _ : state) call();
  };
  benchmark::RegisterBenchmark(row.name.c_str(), body)
      ->MinTime(flags.min_time)
      ->Repetitions(static_cast<int>(flags.repetitions));
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");
  benchmark::ClearRegisteredBenchmarks();
  return reporter.median_seconds();
}

Json row_json(const KernelRow& row, double seconds, const Rates& rates) {
  constexpr double kGiga = 1e9;
  Cost bounding = row.cost;
  if (!row.cold) bounding.bytes = 0;
  const Bound bound = bound_of(bounding, rates);
  const bool known = bound_known(bounding, rates);
  const char* const by = bound.by_memory()       ? "memory"
                         : row.cost.int8 > 0     ? "int8"
                         : row.cost.int8_few > 0 ? "int8 few"
                                                 : "fma";
  return {{"kernel", row.name},
          {"seconds", seconds},
          {"gb_s", row.cost.bytes / seconds / kGiga},
          {"gop_s", (row.cost.int8 + row.cost.int8_few + row.cost.f32) / seconds / kGiga},
          {"bound_by", known ? Json(by) : Json(nullptr)},
          {"share_of_bound", known ? Json(bound.seconds() / seconds) : Json(nullptr)}};
}

std::string head() {
  char text[160];
  std::snprintf(text, sizeof text, "%-36s %12s %9s %9s  %-8s %8s\n", "kernel", "us", "GB/s", "GOP/s", "bound", "share");
  return text;
}

std::string line(const Json& row) {
  char text[200], bound[40];
  if (row["bound_by"].is_null()) {
    std::snprintf(bound, sizeof bound, "%-8s %8s", "-", "-");
  } else {
    std::snprintf(bound, sizeof bound, "%-8s %6.1f %%", row["bound_by"].get<std::string>().c_str(),
                  100.0 * row["share_of_bound"].get<double>());
  }
  std::snprintf(text, sizeof text, "%-36s %12.2f %9.2f %9.1f  %s\n", row["kernel"].get<std::string>().c_str(),
                1e6 * row["seconds"].get<double>(), row["gb_s"].get<double>(), row["gop_s"].get<double>(), bound);
  return text;
}

Result<SimdTarget> find_target(const std::string& name) {
  if (name.empty()) return best_target();
  const auto names = [](std::span<const SimdTarget> targets) {
    std::string list;
    for (const SimdTarget target : targets) list += (list.empty() ? "" : ", ") + std::string(simd_target_name(target));
    return list;
  };
  const auto target = std::ranges::find(kAllTargets, name, simd_target_name);
  if (target == std::end(kAllTargets)) {
    return fail(ErrorCode::invalid_argument,
                "--target " + kvarto::quoted(name) + " is unknown; the targets are " + names(kAllTargets));
  }
  if (std::ranges::count(available_targets(), *target) == 0) {
    return fail(ErrorCode::invalid_argument, "--target " + name + " does not run here: " + why_not(*target) +
                                                 "; give one of " + names(available_targets()));
  }
  return *target;
}

// Those whose name the filter finds, all for an empty one. A name is short, so what needs many steps would need for
// ever.
Result<std::vector<KernelRow>> chosen(const std::string& filter, std::vector<KernelRow> rows) {
  constexpr size_t kLongest = 200;  // characters of a filter
  if (filter.size() > kLongest) {
    return fail(ErrorCode::invalid_argument, "--filter has " + std::to_string(filter.size()) +
                                                 " bytes; give a regular expression of at most " +
                                                 std::to_string(kLongest));
  }
  const auto refuse = [&](const Error& why) {
    return fail(ErrorCode::invalid_argument, "--filter " + kvarto::quoted(filter) + ": " + why.message +
                                                 "; give a simple regular expression such as 'matmul/Q4_K|attend'");
  };
  const Result<Regex> regex = Regex::compile(filter, Regex::Engine::interpreter);
  if (!regex) return refuse(regex.error());
  RegexMatcher matcher({.steps = 200'000, .depth = 20'000, .heap_kib = 16 << 10});
  std::vector<KernelRow> found;
  for (KernelRow& row : rows) {
    const auto match = matcher.find(*regex, row.name, {});
    if (!match) return refuse(match.error());
    if (*match) found.push_back(std::move(row));
  }
  return found;
}

Result<int> show(const Flags& flags, SimdTarget target, const std::vector<KernelRow>& rows,
                 const std::vector<double>& seconds, const Rates& rates) {
  Json list = Json::array();
  for (size_t i = 0; i < rows.size(); ++i) list.push_back(row_json(rows[i], seconds[i], rates));
  if (flags.json) {
    const auto giga = [](double rate) { return rate > 0 ? Json(rate / 1e9) : Json(nullptr); };
    const Json json{{"target", simd_target_name(target)},  {"threads", 1},
                    {"bandwidth_gb_s", giga(rates.bytes)}, {"fma_gflops", giga(rates.f32)},
                    {"int8_gops", giga(rates.int8)},       {"int8_few_gops", giga(rates.int8_few)},
                    {"repetitions", flags.repetitions},    {"rows", std::move(list)}};
    RETURN_IF_ERROR(put(json.dump(2) + "\n"));
    return 0;
  }
  std::string text = std::string(simd_target_name(target)) + "; " + bench_rates(1, rates) + head();
  for (const Json& row : list) text += line(row);
  RETURN_IF_ERROR(put(text));
  return 0;
}

Result<int> run(const Flags& flags) {
  constexpr double kLongest = 600;
  if (!(flags.min_time > 0 && flags.min_time <= kLongest)) {  // also what is no number
    return fail(ErrorCode::invalid_argument, "--min-time takes seconds above 0 and up to 600, such as 0.5");
  }
  if (flags.repetitions == 0 || flags.repetitions > 1000) {
    return fail(ErrorCode::invalid_argument, "-r " + std::to_string(flags.repetitions) + " is not from 1 to 1000");
  }
  ASSIGN_OR_RETURN(const SimdTarget target, find_target(flags.target));
  std::vector<KernelRow> all;
  for (const auto& list : {activation_rows, attention_rows, matmul_rows}) {
    std::ranges::move(list(target), std::back_inserter(all));
  }
  ASSIGN_OR_RETURN(const std::vector<KernelRow> rows, chosen(flags.filter, std::move(all)));
  if (rows.empty()) {
    return fail(ErrorCode::invalid_argument,
                "--filter " + kvarto::quoted(flags.filter) + " matches no kernel; see them all without it");
  }
  MachineRates machine(target);
  machine.measure(1);
  std::vector<double> seconds;
  {
    Progress progress("kernels");
    for (const KernelRow& row : rows) {
      progress.show(seconds.size(), rows.size(), row.name);
      ASSIGN_OR_RETURN(seconds.emplace_back(), time_call(row, flags));
    }
  }
  machine.measure(1);
  return show(flags, target, rows, seconds, machine.of(1));
}

constexpr char kExplanation[] =
    "Examples:\n"
    "  kvarto bench kernels --filter 'matmul/Q4_K'\n"
    "  kvarto bench kernels --filter attend --target avx2 --min-time 0.5\n"
    "Columns:\n"
    "  kernel  its data and shape: matmul/FORMAT/OUTPUTSxINPUTS/rows:N with weights from memory; attend_decode/KV\n"
    "          dtype/KEYS with KV from memory; attend_prefill/KV dtype/HISTORY+rows:N; append to blocks in memory;\n"
    "          the others on 64 rows in the caches\n"
    "  us      CPU time of a call, on one thread; the median of -r repetitions\n"
    "  GB/s    weights or KV read (append: written); of the others all values read and written\n"
    "  GOP/s   operations, a multiply-add being two and an exponential 24\n"
    "  bound   what takes longest at the machine's rates: memory, int8 (few: at most 16 rows, without tiles) or fma\n"
    "  share   the time that this bound allows, of the time taken. Rates are measured before and after the rows, the\n"
    "          larger counts; they are measurements with noise, so a share may exceed 100 %. -, or null in JSON, is\n"
    "          what could not be measured";

}  // namespace

KernelVerb declare_bench_kernels(CLI::App& bench) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* app = bench.add_subcommand("kernels", "Each kernel alone, against what bounds it on this machine");
  app->add_option("--filter", flags->filter, "Only kernels whose name this regular expression (Perl's) finds");
  app->add_option("--target", flags->target, "SIMD target: scalar, avx2, avx512, amx; the best one when not given");
  app->add_option("--min-time", flags->min_time, "Seconds each repetition runs at least, up to 600");
  add_count(*app, "-r,--repetitions", flags->repetitions, "Runs of each kernel, of which the median is shown");
  app->add_flag("--json", flags->json, "One object: the machine's rates, and rows");
  app->footer(kExplanation);
  return {[app] { return app->parsed(); }, [flags] { return run(*flags); }};
}

}  // namespace kvarto
