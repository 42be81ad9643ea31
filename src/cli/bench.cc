// `kvarto bench`: tokens per second of prompts (pp) and of generation (tg) at given depths, batch sizes and thread
// counts.
#include "cli/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "cli/bench_kernels.h"
#include "cli/bench_row.h"
#include "cli/bench_serve.h"
#include "cli/bench_work.h"
#include "cli/list.h"
#include "cli/output.h"
#include "cli/step_cost.h"
#include "engine/validate.h"

namespace kvarto {
namespace {

using Work = Result<WorkTime> (*)(Engine&, const std::vector<TokenId>&, uint32_t, uint32_t, std::mt19937_64&,
                                  bool hash);

struct Plan {
  std::vector<uint32_t> depths, batches, threads;
};

Result<Plan> read_plan(const BenchFlags& flags) {
  Plan plan;
  ASSIGN_OR_RETURN(plan.depths, parse_counts("-d", flags.depths, "0,4096"));
  ASSIGN_OR_RETURN(plan.batches, parse_counts("-b", flags.batches, "1,8"));
  ASSIGN_OR_RETURN(plan.threads, parse_counts("--threads", flags.threads, "1,2"));
  EngineOptions options;  // all of the list: the last engine is loaded when the others have been measured
  for (const uint32_t threads : plan.threads) {
    options.threads = static_cast<int>(std::min(threads, uint32_t{1} << 30));
    RETURN_IF_ERROR(validate(options));
  }
  if (std::ranges::count(plan.batches, 0u) > 0)
    return fail(ErrorCode::invalid_argument, "-b 0 runs nothing; give 1 or more");
  if (flags.repetitions == 0) return fail(ErrorCode::invalid_argument, "-r 0 measures nothing; give 1 or more");
  if (flags.prompt == 0 && flags.generate == 0) {
    return fail(ErrorCode::invalid_argument, "-p 0 -n 0 leaves nothing to measure; give one of them");
  }
  return plan;
}

// A row in the making. `cost` is that of `tokens` tokens, as many as one run computes.
struct Case {
  std::string test;
  Work work;
  uint32_t batch, count;
  Cost cost;
  uint64_t tokens;
};

// An engine, and what is known of it.
struct Setting {
  std::unique_ptr<Engine> engine;
  StepCost cost;
  bool caching, recompute;
  std::vector<TokenId> shared = {};  // the tokens of the depth
};

class Bench {
 public:
  Bench(const BenchFlags& flags, Plan plan) : flags_(flags), plan_(std::move(plan)) {}

  Result<int> run() {
    for (const uint32_t threads : plan_.threads) {
      RETURN_IF_ERROR(run_engine(threads, /*recompute=*/false));
      if (flags_.recompute) RETURN_IF_ERROR(run_engine(threads, /*recompute=*/true));
    }
    if (rows_.empty()) {
      return fail(ErrorCode::invalid_argument,
                  "no row fits, nothing was measured; give less with -p, -n or -d, or more with --max-model-len");
    }
    for (BenchRow& row : rows_) row.rates = rates_.of(row.threads);
    RETURN_IF_ERROR(put(flags_.json ? bench_json(rows_) : bounds_text()));
    return 0;
  }

 private:
  // With `recompute` only generation, by an engine that reuses nothing.
  Status run_engine(uint32_t threads, bool recompute) {
    ASSIGN_OR_RETURN(Setting setting, load(threads, recompute));
    const size_t rows_before = rows_.size();
    rates_.measure(setting.engine->info().threads);
    RETURN_IF_ERROR(run_depths(setting));
    if (rows_.size() > rows_before) rates_.measure(setting.engine->info().threads);
    return {};
  }

  Status run_depths(Setting& setting) {
    for (const uint32_t depth : plan_.depths) {
      // Behind the depth: the prompt and its first token; a token of its own, a first one, those that are timed.
      const bool prompts = flags_.prompt > 0 && !setting.recompute &&
                           fits(setting, prompt_name(), "-p", depth, uint64_t{flags_.prompt} + 1);
      const bool generations =
          flags_.generate > 0 && fits(setting, generation_name(setting), "-n", depth, uint64_t{flags_.generate} + 2);
      if (!prompts && !generations) continue;
      setting.shared = depth_ids(*setting.engine, depth);
      if (setting.caching) RETURN_IF_ERROR(warm_up(*setting.engine, setting.shared));
      for (const uint32_t batch : plan_.batches) {
        if (prompts) RETURN_IF_ERROR(measure(setting, prompt_case(setting, batch)));
        if (generations) RETURN_IF_ERROR(measure(setting, generation_case(setting, batch)));
      }
    }
    return {};
  }

  // Whether a row of `depth` and `more` tokens can be run; when not, that is said. `flag` sets `more`.
  static bool fits(const Setting& setting, const std::string& name, const std::string& flag, uint32_t depth,
                   uint64_t more) {
    const EngineInfo& info = setting.engine->info();
    const uint64_t needed = depth + more;
    if (needed <= info.max_model_len) return true;
    note(name + " at depth " + std::to_string(depth) + " left out: it needs " + std::to_string(needed) +
         " tokens, and this model runs at most " + std::to_string(info.max_model_len) + "; give less with " + flag +
         (depth > 0 ? " or -d" : "") +
         (info.max_model_len < info.context_length ? ", or more with --max-model-len" : ""));
    return false;
  }

  Result<Setting> load(uint32_t threads, bool recompute) {
    ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags_.model, *std::ranges::max_element(plan_.batches)));
    options.threads = static_cast<int>(threads);
    options.touch_kv = true;  // a server pays for the first touch of its pages once; here it would be part of each run
    if (recompute) options.enable_prefix_caching = false;
    ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, load_engine(flags_.model, options));
    ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(engine->info().model_path));
    ASSIGN_OR_RETURN(ModelConfig config, read_config(*file));
    StepCost cost(std::move(config), matrix_sizes(file->tensors(), options.reference), engine->cache().layout(),
                  engine->info().pass_bytes, options.max_num_batched_tokens);
    return Setting{std::move(engine), std::move(cost), options.enable_prefix_caching, recompute};
  }

  std::string prompt_name() const { return "pp" + std::to_string(flags_.prompt); }
  std::string generation_name(const Setting& setting) const {
    return "tg" + std::to_string(flags_.generate) + (setting.recompute ? " recompute" : "");
  }

  Case prompt_case(const Setting& setting, uint32_t batch) const {
    const auto depth = static_cast<uint32_t>(setting.shared.size());
    const uint32_t block = setting.engine->cache().layout().block_tokens();
    const uint32_t found = setting.caching ? depth / block * block : 0, computed = depth - found + flags_.prompt;
    return {prompt_name(),
            time_prompt,
            batch,
            flags_.prompt,
            setting.cost.prompts(found, batch, computed),
            uint64_t{batch} * computed};
  }
  Case generation_case(const Setting& setting, uint32_t batch) const {
    const uint32_t count = flags_.generate;
    const uint64_t length = setting.shared.size() + 1, tokens = uint64_t{batch} * count;
    const std::string name = generation_name(setting);
    if (setting.recompute) {
      return {name, time_recompute, batch, count, setting.cost.recompute(length, batch, count), tokens};
    }
    return {name, time_generation, batch, count, setting.cost.generation(length, batch, count), tokens};
  }

  // The median of the repetitions, after one that is not timed and hashes the logits (a recomputation is slow enough to
  // be hashed on the way).
  Status measure(const Setting& setting, const Case& c) {
    // Token ids follow from the row alone: another run of it computes the same logits.
    std::seed_seq seed{flags_.seed, uint64_t{setting.shared.size()}, uint64_t{c.batch}, uint64_t{c.count},
                       uint64_t{c.work == time_prompt}};
    std::mt19937_64 random(seed);
    std::vector<double> speeds;
    std::string hash;
    for (uint32_t i = setting.recompute ? 1 : 0; i <= flags_.repetitions; ++i) {
      const bool hashed = i == 0 || (setting.recompute && i == 1);
      ASSIGN_OR_RETURN(const WorkTime time, c.work(*setting.engine, setting.shared, c.batch, c.count, random, hashed));
      if (hashed) hash = time.logits_sha256;
      if (i > 0) speeds.push_back(static_cast<double>(time.tokens) / time.seconds);
    }
    std::ranges::sort(speeds);
    return add_row(setting, c, speeds[speeds.size() / 2], hash);
  }

  Status add_row(const Setting& setting, const Case& c, double tokens_per_s, const std::string& hash) {
    const EngineInfo& info = setting.engine->info();
    rows_.push_back({.test = c.test,
                     .depth = setting.shared.size(),
                     .batch = c.batch,
                     .threads = info.threads,
                     .kv_dtype = info.kv_dtype,
                     .tokens_per_s = tokens_per_s,
                     .token_cost = c.cost / static_cast<double>(c.tokens),
                     .logits_sha256 = hash,
                     .rates = {}});
    if (flags_.json) return {};
    return put((rows_.size() == 1 ? bench_head() : "") + bench_line(rows_.back()));
  }

  std::string bounds_text() const {
    std::map<int, Rates> rates;
    for (const BenchRow& row : rows_) rates[row.threads] = row.rates;
    std::string text = "\n";
    for (const auto& [threads, of] : rates) text += bench_rates(threads, of);
    text += bounds_head();
    for (const BenchRow& row : rows_) text += bounds_line(row);
    return text;
  }

  const BenchFlags& flags_;
  const Plan plan_;
  MachineRates rates_;
  std::vector<BenchRow> rows_;
};

Result<int> bench(const BenchFlags& flags) {
  if (flags.waste) return bench_waste(flags);
  if (flags.model.model.empty()) {
    return fail(ErrorCode::invalid_argument, "MODEL is missing; name one (only --waste runs without)");
  }
  ASSIGN_OR_RETURN(Plan plan, read_plan(flags));
  return Bench(flags, std::move(plan)).run();
}

// The parts have flags of their own, which stand behind their word.
Status refuse_flags_before(const std::string& word, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0) {
      return fail(ErrorCode::invalid_argument, "`bench " + word + "` loads no model and takes no " +
                                                   option->get_name() + " before the word " + word +
                                                   "; its own flags stand behind it");
    }
  }
  return {};
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
  app.add_flag("--json", flags->json, "A list of objects, one per row");
  app.add_flag("--recompute", flags->recompute,
               "The tg rows once more without a KV cache: each token computes all before it");
  app.add_flag("--waste", flags->waste,
               "Instead: the share of KV memory that holds no token, with 64 sequences at once");
  add_engine_flags(app, flags->model, /*threads=*/false);
  app.footer(app.get_footer() + "\n" + std::string(bench_explanation()));
  const KernelVerb kernels = declare_bench_kernels(app);
  const BenchServeVerb serve = declare_bench_serve(app);
  return [&app, flags, kernels, serve]() -> Result<int> {
    if (!kernels.chosen() && !serve.chosen()) return bench(*flags);
    RETURN_IF_ERROR(refuse_flags_before(kernels.chosen() ? "kernels" : "serve", app));
    return kernels.chosen() ? kernels.run() : serve.run();
  };
}

}  // namespace kvarto
