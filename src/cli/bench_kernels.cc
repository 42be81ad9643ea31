// `kvarto bench kernels`: runs the rows one by one in google-benchmark and sets them against the machine's rates. The
// one file that includes the library.
#include "cli/bench_kernels.h"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>

#include "cli/bench_row.h"
#include "cli/output.h"
#include "format/printable.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string filter, target;
  double min_time = 0.1;
  bool json = false;
};

// Keeps the one run that it is shown.
class Reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) {
        error_ = run.error_message;
      } else if (run.iterations > 0) {
        seconds_ = run.cpu_accumulated_time / static_cast<double>(run.iterations);
      }
    }
  }
  Result<double> seconds() const {
    if (!error_.empty()) return fail(ErrorCode::internal, error_);
    return seconds_;
  }

 private:
  std::string error_;
  double seconds_ = 0;
};

// Seconds of one call. CPU time: a kernel is one thread, and others may want the core.
Result<double> time_call(const KernelRow& row, double min_time) {
  ASSIGN_OR_RETURN(const std::function<void()> call, row.scene());
  const auto body = [&](benchmark::State& state) {
    for (auto _ : state) call();
  };
  benchmark::RegisterBenchmark(row.name.c_str(), body)->MinTime(min_time);
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");
  benchmark::ClearRegisteredBenchmarks();
  return reporter.seconds();
}

Json row_json(const KernelRow& row, double seconds, const Rates& rates) {
  constexpr double kGiga = 1e9;
  Cost bounding = row.cost;
  if (!row.cold) bounding.bytes = 0;
  const Bound bound = bound_of(bounding, rates);
  return {{"kernel", row.name},
          {"seconds", seconds},
          {"gb_s", row.cost.bytes / seconds / kGiga},
          {"gop_s", (row.cost.int8 + row.cost.f32) / seconds / kGiga},
          {"bound_by", bound.by_memory     ? "memory"
                       : row.cost.int8 > 0 ? "int8"
                                           : "fma"},
          {"share_of_bound", bound.seconds / seconds}};
}

std::string head() {
  char text[160];
  std::snprintf(text, sizeof text, "%-36s %12s %9s %9s  %-7s %8s\n", "kernel", "us", "GB/s", "GOP/s", "bound", "share");
  return text;
}

std::string line(const Json& row) {
  char text[200];
  std::snprintf(text, sizeof text, "%-36s %12.2f %9.2f %9.1f  %-7s %6.1f %%\n",
                row["kernel"].get<std::string>().c_str(), 1e6 * row["seconds"].get<double>(), row["gb_s"].get<double>(),
                row["gop_s"].get<double>(), row["bound_by"].get<std::string>().c_str(),
                100.0 * row["share_of_bound"].get<double>());
  return text;
}

Result<SimdTarget> find_target(const std::string& name) {
  if (name.empty()) return best_target();
  std::string known;
  for (const SimdTarget target : available_targets()) {
    if (simd_target_name(target) == name) return target;
    known += (known.empty() ? "" : ", ") + std::string(simd_target_name(target));
  }
  return fail(ErrorCode::invalid_argument,
              "--target " + kvarto::quoted(name) + " does not run here; give one of " + known);
}

Result<std::regex> compile(const std::string& filter) {
  try {
    return std::regex(filter);
  } catch (const std::regex_error&) {
    return fail(ErrorCode::invalid_argument, "--filter " + kvarto::quoted(filter) +
                                                 " is not a regular expression; give one such as 'matmul/Q4_K|attend'");
  }
}

Result<int> run(const Flags& flags) {
  ASSIGN_OR_RETURN(const SimdTarget target, find_target(flags.target));
  ASSIGN_OR_RETURN(const std::regex filter, compile(flags.filter));
  std::vector<KernelRow> rows;
  for (const auto& list : {activation_rows, attention_rows, matmul_rows}) {
    std::ranges::copy_if(list(target), std::back_inserter(rows),
                         [&](const KernelRow& row) { return std::regex_search(row.name, filter); });
  }
  if (rows.empty()) {
    return fail(ErrorCode::invalid_argument,
                "--filter " + kvarto::quoted(flags.filter) + " matches no kernel; see them all without it");
  }
  const Rates rates = MachineRates(target).of(1);
  Json json{{"target", simd_target_name(target)},  {"threads", 1},
            {"bandwidth_gb_s", rates.bytes / 1e9}, {"fma_gflops", rates.f32 / 1e9},
            {"int8_gops", rates.int8 / 1e9},       {"rows", Json::array()}};
  if (!flags.json) {
    RETURN_IF_ERROR(put(std::string(simd_target_name(target)) + "; " + bench_rates(1, rates) + head()));
  }
  for (const KernelRow& row : rows) {
    ASSIGN_OR_RETURN(const double seconds, time_call(row, flags.min_time));
    json["rows"].push_back(row_json(row, seconds, rates));
    if (!flags.json) RETURN_IF_ERROR(put(line(json["rows"].back())));
  }
  if (flags.json) RETURN_IF_ERROR(put(json.dump(2) + "\n"));
  return 0;
}

constexpr char kExplanation[] =
    "Examples:\n"
    "  kvarto bench kernels --filter 'matmul/Q4_K'\n"
    "  kvarto bench kernels --filter attend --target avx2 --min-time 0.5\n"
    "Columns:\n"
    "  kernel  its data and shape: matmul/FORMAT/OUTPUTSxINPUTS/rows:N with weights from memory; attend_decode/KV\n"
    "          dtype/KEYS with KV from memory; attend_prefill/KV dtype/HISTORY+rows:N; append to blocks in memory;\n"
    "          the others on 64 rows in the caches\n"
    "  us      CPU time of a call, on one thread\n"
    "  GB/s    weights or KV read (append: written); of the others all values read and written\n"
    "  GOP/s   operations, a multiply-add being two and an exponential 24\n"
    "  bound   what takes longest at the machine's rates: memory, int8 or fma\n"
    "  share   the time that this bound allows, of the time taken";

}  // namespace

KernelVerb declare_bench_kernels(CLI::App& bench) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* app = bench.add_subcommand("kernels", "Each kernel alone, against what bounds it on this machine");
  app->add_option("--filter", flags->filter, "Only kernels whose name this regular expression finds");
  app->add_option("--target", flags->target, "SIMD target: scalar, avx2, avx512, amx; the best one when not given");
  app->add_option("--min-time", flags->min_time, "Seconds each kernel runs at least")->check(CLI::PositiveNumber);
  app->add_flag("--json", flags->json, "One object: the machine's rates, and rows");
  app->footer(kExplanation);
  return {[app] { return app->parsed(); }, [flags] { return run(*flags); }};
}

}  // namespace kvarto
