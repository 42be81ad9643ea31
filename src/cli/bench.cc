// `kvarto bench`: tokens per second of prompts (pp) and of generation (tg) at given depths, batch sizes and thread
// counts.
#include "cli/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bandwidth.h"
#include "cli/bench_work.h"
#include "cli/list.h"
#include "cli/output.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using Work = Result<WorkTime> (*)(Engine&, const std::vector<TokenId>&, uint32_t, uint32_t, std::mt19937_64&);

struct Plan {
  std::vector<uint32_t> depths, batches, threads;
};

Result<Plan> read_plan(const BenchFlags& flags) {
  Plan plan;
  ASSIGN_OR_RETURN(plan.depths, parse_counts("-d", flags.depths));
  ASSIGN_OR_RETURN(plan.batches, parse_counts("-b", flags.batches));
  ASSIGN_OR_RETURN(plan.threads, parse_counts("--threads", flags.threads));
  if (std::ranges::count(plan.batches, 0u) > 0)
    return fail(ErrorCode::invalid_argument, "-b 0 runs nothing; give 1 or more");
  if (flags.repetitions == 0) return fail(ErrorCode::invalid_argument, "-r 0 measures nothing; give 1 or more");
  if (flags.prompt == 0 && flags.generate == 0) {
    return fail(ErrorCode::invalid_argument, "-p 0 -n 0 leaves nothing to measure; give one of them");
  }
  return plan;
}

std::string row_text(const Json& row) {
  char text[160];
  std::snprintf(text, sizeof text, "%-20s %7u %6u %8d  %-10s %12.2f %7.1f %%\n", row["test"].get<std::string>().c_str(),
                row["depth"].get<unsigned>(), row["batch"].get<unsigned>(), row["threads"].get<int>(),
                row["kv_dtype"].get<std::string>().c_str(), row["tokens_per_s"].get<double>(),
                100.0 * row["share_of_bandwidth"].get<double>());
  return text;
}

class Bench {
 public:
  Bench(const BenchFlags& flags, Plan plan) : flags_(flags), plan_(std::move(plan)) {}

  Result<int> run() {
    if (!flags_.json) {
      char head[160];
      std::snprintf(head, sizeof head, "%-20s %7s %6s %8s  %-10s %12s %9s\n", "test", "depth", "batch", "threads",
                    "kv_dtype", "tokens/s", "bandwidth");
      RETURN_IF_ERROR(put(head));
    }
    for (const uint32_t threads : plan_.threads) {
      RETURN_IF_ERROR(run_engine(threads, /*recompute=*/false));
      if (flags_.recompute) RETURN_IF_ERROR(run_engine(threads, /*recompute=*/true));
    }
    if (rows_.empty())
      return fail(ErrorCode::invalid_argument, "no depth fits, nothing was measured; give smaller ones with -d");
    if (flags_.json) RETURN_IF_ERROR(put(rows_.dump(2) + "\n"));
    return 0;
  }

 private:
  // With `recompute` only generation, by an engine that reuses nothing.
  Status run_engine(uint32_t threads, bool recompute) {
    const uint32_t longest = *std::ranges::max_element(plan_.batches);
    ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags_.model, longest));
    options.threads = static_cast<int>(threads);
    if (recompute) options.enable_prefix_caching = false;
    ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load_engine(flags_.model, options));
    for (const uint32_t depth : plan_.depths) {
      const uint64_t needed = uint64_t{depth} + std::max(flags_.prompt + 1, flags_.generate + 2);
      if (needed > engine->info().max_model_len) {
        note("depth " + std::to_string(depth) + " left out: it needs " + std::to_string(needed) +
             " tokens, and this model runs at most " + std::to_string(engine->info().max_model_len));
        continue;
      }
      const std::vector<TokenId> shared = depth_ids(*engine, depth);
      if (!recompute && options.enable_prefix_caching) RETURN_IF_ERROR(warm_up(*engine, shared));
      for (const uint32_t batch : plan_.batches) {
        if (flags_.prompt > 0 && !recompute) {
          RETURN_IF_ERROR(
              measure(*engine, "pp" + std::to_string(flags_.prompt), time_prompt, shared, batch, flags_.prompt));
        }
        if (flags_.generate > 0) {
          const std::string name = "tg" + std::to_string(flags_.generate) + (recompute ? " recompute" : "");
          RETURN_IF_ERROR(
              measure(*engine, name, recompute ? time_recompute : time_generation, shared, batch, flags_.generate));
        }
      }
    }
    return {};
  }

  // The median of the repetitions.
  Status measure(Engine& engine, const std::string& test, Work work, const std::vector<TokenId>& shared, uint32_t batch,
                 uint32_t count) {
    std::vector<std::pair<double, double>> rates;  // tokens and bytes per second
    for (uint32_t i = 0; i < flags_.repetitions; ++i) {
      ASSIGN_OR_RETURN(const WorkTime time, work(engine, shared, batch, count, random_));
      rates.emplace_back(static_cast<double>(time.tokens) / time.seconds, time.read_bytes / time.seconds);
    }
    std::ranges::sort(rates);
    const auto [tokens_per_s, bytes_per_s] = rates[rates.size() / 2];
    const double bandwidth = bandwidth_.bytes_per_s(engine.info().threads);
    const Json row{{"test", test},
                   {"depth", shared.size()},
                   {"batch", batch},
                   {"threads", engine.info().threads},
                   {"kv_dtype", engine.info().kv_dtype},
                   {"tokens_per_s", tokens_per_s},
                   {"share_of_bandwidth", bandwidth > 0 ? bytes_per_s / bandwidth : 0.0}};
    rows_.push_back(row);
    return flags_.json ? Status() : put(row_text(row));
  }

  const BenchFlags& flags_;
  const Plan plan_;
  Bandwidth bandwidth_;
  std::mt19937_64 random_{flags_.seed};
  Json rows_ = Json::array();
};

Result<int> bench(const BenchFlags& flags) {
  if (flags.waste) return bench_waste(flags);
  if (flags.model.model.empty()) {
    return fail(ErrorCode::invalid_argument, "MODEL is missing; name one (only --waste runs without)");
  }
  ASSIGN_OR_RETURN(Plan plan, read_plan(flags));
  return Bench(flags, std::move(plan)).run();
}

}  // namespace

VerbAction declare_bench(CLI::App& app) {
  const auto flags = std::make_shared<BenchFlags>();
  add_model_flag(app, flags->model, /*required=*/false);
  add_count(app, "-p,--n-prompt", flags->prompt, "Prompt tokens of a pp row; 0: no such rows");
  add_count(app, "-n,--n-gen", flags->generate, "Generated tokens of a tg row; 0: no such rows");
  app.add_option("-d,--n-depth", flags->depths,
                 "Tokens already in the cache, shared by the sequences of a batch: a list such as 0,4096,16384");
  app.add_option("-b,--batch", flags->batches, "Sequences at once: a list such as 1,8");
  app.add_option("--threads", flags->threads, "Compute threads: a list such as 1,2; 0: one per usable physical core");
  add_count(app, "-r,--repetitions", flags->repetitions, "Runs of each row, of which the median is shown");
  add_count(app, "--seed", flags->seed, "Of the random token ids and of the lengths of --waste");
  app.add_flag("--json", flags->json,
               "A list of {test, depth, batch, threads, kv_dtype, tokens_per_s, share_of_bandwidth}");
  app.add_flag("--recompute", flags->recompute,
               "The tg rows once more without a KV cache: each token computes all before it");
  app.add_flag("--waste", flags->waste,
               "Instead: the share of KV memory that holds no token, with 64 sequences at once");
  add_engine_flags(app, flags->model, /*threads=*/false);
  return [flags] { return bench(*flags); };
}

}  // namespace kvarto
