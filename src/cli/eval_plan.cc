#include "cli/eval_plan.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "backend/backend.h"
#include "base/hash.h"
#include "base/numerics.h"
#include "eval/own_tasks.h"
#include "eval/texts.h"
#include "format/printable.h"
#include "http/url.h"
#include "model/list.h"
#include "text/tokenizer.h"

namespace kvarto {
namespace {

constexpr uint32_t kShortestContext = 128, kLongestContext = 1u << 20, kMostSamples = 10'000, kMostPieces = 1000;
constexpr char kTextWord[] = "text", kNoneWord[] = "none";

tl::unexpected<Error> wrong(std::string message) { return fail(ErrorCode::invalid_argument, std::move(message)); }

Status in_range(const char* flag, uint32_t value, uint32_t low, uint32_t high) {
  if (value >= low && value <= high) return {};
  return wrong(std::string(flag) + " " + std::to_string(value) + " is not from " + std::to_string(low) + " to " +
               std::to_string(high));
}

Status check_flags(const EvalFlags& flags) {
  const EvalSizes sizes = sizes_of(flags);
  RETURN_IF_ERROR(in_range("--context", sizes.context, kShortestContext, kLongestContext));
  RETURN_IF_ERROR(in_range("--samples", sizes.samples, 1, kMostSamples));
  RETURN_IF_ERROR(in_range("--text-pieces", sizes.text_pieces, 1, kMostPieces));
  if (flags.max_drop && !(*flags.max_drop >= 0 && *flags.max_drop <= 1)) {
    return wrong("--max-drop takes a share from 0 to 1, such as 0.02");
  }
  if (flags.output.empty()) return wrong("--output '' names no folder");
  if (flags.model.kv_cache_dtype != "auto") {
    return wrong(
        "--kv-cache-dtype " + printable(flags.model.kv_cache_dtype) +
        " would be one for all settings; a setting says it: --candidate kv=" + printable(flags.model.kv_cache_dtype));
  }
  if (flags.model.engine.max_model_len != 0) {
    return wrong("--max-model-len follows from the tasks; give --context instead");
  }
  if (flags.urls.empty() && !(flags.api_key.empty() && flags.served_model.empty())) {
    return wrong("--api-key and --served-model are for a server; name it with --url");
  }
  if (!flags.model.model.empty()) return {};
  if (flags.urls.empty()) return wrong("MODEL is missing; name one, or a server with --url");
  if (flags.baseline_given || !flags.candidates.empty() || !flags.texts.empty() || flags.dump) {
    return wrong("--baseline, --candidate, --text and --dump are for a model that runs here; name MODEL beside --url");
  }
  if (flags.max_drop && flags.urls.size() == 1) {
    return wrong(
        "--max-drop compares, and one server alone has nothing to be compared with; give MODEL or a second --url");
  }
  return {};
}

// --- what is measured

struct Chosen {
  bool texts = false;
  std::vector<const Family*> families;
};

Result<Chosen> choose(const std::string& only) {
  Chosen chosen;
  if (only.empty()) {
    chosen.texts = true;
    for (const Family& family : families()) chosen.families.push_back(&family);
    return chosen;
  }
  std::set<std::string_view> wanted;
  for (size_t from = 0; from <= only.size();) {
    const size_t end = std::min(only.find(',', from), only.size());
    const std::string_view word = std::string_view(only).substr(from, end - from);
    const bool known = word == kTextWord || word == kNoneWord ||
                       std::ranges::find(families(), word, &Family::name) != families().end();
    if (!known) {
      std::string names;
      for (const Family& family : families()) names += std::string(family.name) + ", ";
      return wrong("--only has no family " + kvarto::quoted(word) + "; the families are " + names +
                   "and there are the words text, for the texts, and none");
    }
    wanted.insert(word);
    from = end + 1;
  }
  chosen.texts = wanted.contains(kTextWord);
  for (const Family& family : families()) {
    if (wanted.contains(family.name)) chosen.families.push_back(&family);
  }
  return chosen;
}

// --- who is compared

Result<std::vector<Setting>> settings_of(const EvalFlags& flags) {
  std::vector<Setting> settings;
  if (flags.model.model.empty()) return settings;
  ASSIGN_OR_RETURN(Setting baseline, parse_setting(flags.baseline));
  settings.push_back(std::move(baseline));
  std::vector<std::string> texts = flags.candidates;
  if (texts.empty() && flags.urls.empty()) texts = {"kv=bf16"};
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const std::vector<Setting> candidates, parse_settings(text));
    for (const Setting& candidate : candidates) {
      // One that equals the baseline shows that nothing else makes a difference.
      if (std::find(settings.begin() + 1, settings.end(), candidate) != settings.end()) {
        return wrong("candidate " + kvarto::quoted(candidate.name) + " comes twice; give it once");
      }
      settings.push_back(candidate);
    }
  }
  return settings;
}

// Behind the candidates, where texts are compared: see RunFacts::noise_floor. 120 dB is a thousandth of what float16
// rounds away.
Status add_floor(EvalPlan& plan) {
  if (plan.settings.size() < 2 || plan.settings.front().fault.any()) return {};
  ASSIGN_OR_RETURN(Setting floor, parse_setting(plan.settings.front().name + ":noise=120"));
  plan.work.facts.noise_floor = plan.settings.size();
  plan.settings.push_back(std::move(floor));
  return {};
}

using CountTokens = std::function<Result<uint32_t>(std::string_view)>;

// Those behind the engines. Each is asked who it is, so that a mistake shows before hours of work; the first one counts
// tokens where no model does.
Status add_servers(const EvalFlags& flags, EvalPlan& plan, CountTokens& count) {
  for (const std::string& text : flags.urls) {
    ASSIGN_OR_RETURN(const Url url, parse_url(text));
    const std::string name = shown(url);
    if (std::ranges::count(plan.work.facts.settings, name) > 0) return wrong("--url " + name + " comes twice");
    ServerOptions options{.url = text, .model = flags.served_model, .api_key = flags.api_key};
    ASSIGN_OR_RETURN(FoundServer server, find_server(options));
    plan.work.facts.settings.push_back(name);
    plan.servers.push_back(std::move(options));
    if (count) continue;
    plan.work.facts.model = server.model;
    count = [subject = std::shared_ptr<Subject>(std::move(server.subject))](std::string_view counted) {
      return subject->count_tokens(counted);
    };
  }
  return {};
}

struct LocalModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  uint32_t context_length = 0;
};

Result<LocalModel> read_model(const EvalFlags& flags, EvalPlan& plan) {
  ASSIGN_OR_RETURN(plan.options, engine_options(flags.model, kTasksTogether));
  ASSIGN_OR_RETURN(const std::string path, find_model(flags.model));
  ASSIGN_OR_RETURN(plan.file, GgufFile::open(path));
  ASSIGN_OR_RETURN(const ModelConfig config, read_config(*plan.file));
  LocalModel model{.tokenizer = {}, .context_length = config.context_length};
  ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::from_gguf(*plan.file));
  std::set<std::string> types;
  for (const GgufTensor& tensor : plan.file->tensors()) types.insert(tensor.type->name);
  RunFacts& facts = plan.work.facts;
  for (const std::string& type : types) facts.weight_types += (facts.weight_types.empty() ? "" : ", ") + type;
  facts.model = std::filesystem::path(path).filename().string();
  facts.fingerprint = plan.file->fingerprint();
  facts.architecture = config.architecture;
  facts.numerics = plan.options.reference ? kNumericsF32 : kNumericsInt8;
  facts.simd_target = simd_target_name(best_target());
  facts.threads = cpu_threads(plan.options.threads);
  facts.block_size = plan.options.block_size;
  if (facts.context_tokens > config.context_length) {
    return wrong("--context " + std::to_string(facts.context_tokens) + " is beyond the model's context of " +
                 std::to_string(config.context_length) + " tokens; give that or less");
  }
  return model;
}

// --- texts and tasks

Status add_texts(const EvalFlags& flags, const Tokenizer& tokenizer, EvalPlan& plan) {
  ASSIGN_OR_RETURN(const std::vector<TextFile> files, read_texts(flags.texts));
  const size_t most = std::max<size_t>(sizes_of(flags).text_pieces, flags.texts.size());
  ASSIGN_OR_RETURN(TextPieces pieces, cut_texts(files, tokenizer, plan.work.facts.context_tokens, most));
  plan.work.texts = std::move(pieces.texts);
  plan.work.facts.texts = std::move(pieces.facts);
  if (plan.work.texts.size() < most) {
    plan.notes.push_back("texts: " + std::to_string(plan.work.texts.size()) + " pieces of " +
                         std::to_string(plan.work.facts.context_tokens) + " tokens is all there is of them");
  }
  return {};
}

Status add_families(const std::vector<const Family*>& chosen, const CountTokens& count, EvalPlan& plan) {
  RunFacts& facts = plan.work.facts;
  Status counted;
  TaskPlan task_plan{
      .seed = facts.seed, .samples = facts.samples, .context_tokens = facts.context_tokens, .count_tokens = {}};
  task_plan.count_tokens = [&](std::string_view text) -> uint32_t {
    Result<uint32_t> tokens = counted ? count(text) : Result<uint32_t>(0);
    if (!tokens) counted = tl::unexpected<Error>(std::move(tokens.error()));
    return tokens.value_or(0);
  };
  for (const Family* const family : chosen) {
    std::vector<Task> tasks = family->make(task_plan);
    RETURN_IF_ERROR(counted);
    if (tasks.empty()) {
      plan.notes.push_back(std::string(family->name) + " is left out: none of its tasks fits " +
                           std::to_string(facts.context_tokens) + " tokens");
      continue;
    }
    facts.families.emplace_back(family->name);
    std::ranges::move(tasks, std::back_inserter(plan.work.tasks));
  }
  return {};
}

Status add_own_tasks(const EvalFlags& flags, const CountTokens& count, EvalPlan& plan) {
  if (flags.tasks.empty()) return {};
  RunFacts& facts = plan.work.facts;
  ASSIGN_OR_RETURN(const std::string content, read_input(flags.tasks));
  ASSIGN_OR_RETURN(std::vector<Task> tasks, parse_own_tasks(content));
  std::set<std::string_view> taken;
  for (const Task& task : plan.work.tasks) taken.insert(task.id);
  for (Task& task : tasks) {
    const std::string name = "task " + kvarto::quoted(task.id) + " of " + printable(flags.tasks);
    if (taken.contains(task.id)) return wrong(name + " has the id of another one; give it its own");
    // Of messages about: what the template writes around them comes to as much as their JSON.
    ASSIGN_OR_RETURN(task.length_tokens, count(task.prompt + task.messages));
    if (task.length_tokens > facts.context_tokens) {
      return wrong(name + " has " + std::to_string(task.length_tokens) + " tokens; give --context that much or more");
    }
    if (task.answer.empty()) continue;
    ASSIGN_OR_RETURN(const uint32_t answer_tokens, count(task.answer));
    task.max_tokens = std::max(task.max_tokens, answer_tokens);
  }
  Sha256 hash;
  hash.update(content);
  facts.own_tasks_sha256 = to_hex(hash.finish());
  facts.families.push_back(tasks.front().family);
  std::ranges::move(tasks, std::back_inserter(plan.work.tasks));
  return {};
}

// The context, and behind it what the longest answer takes, as far as the model goes. Families stay within the context.
Status set_length(uint32_t context_length, EvalPlan& plan) {
  uint32_t answer = 0;
  for (const Task& task : plan.work.tasks) answer = std::max(answer, task.max_tokens);
  const uint32_t wanted = plan.work.facts.context_tokens + answer;
  plan.options.max_model_len = std::min(wanted, context_length);
  for (const Task& task : plan.work.tasks) {
    if (task.skill != Skill::own || task.length_tokens + uint64_t{task.max_tokens} <= context_length) continue;
    return wrong("task " + kvarto::quoted(task.id) + " with " + std::to_string(task.length_tokens) + " tokens and " +
                 std::to_string(task.max_tokens) + " to generate is beyond the model's context of " +
                 std::to_string(context_length) + "; shorten it");
  }
  return {};
}

}  // namespace

EvalSizes sizes_of(const EvalFlags& flags) {
  return {.context = flags.context.value_or(flags.quick ? 1024 : 4096),
          .samples = flags.samples.value_or(flags.quick ? 12 : 48),
          .text_pieces = flags.text_pieces.value_or(flags.quick ? 1 : 2)};
}

Result<EvalPlan> plan_eval(const EvalFlags& flags) {
  RETURN_IF_ERROR(check_flags(flags));
  ASSIGN_OR_RETURN(Chosen chosen, choose(flags.only));
  EvalPlan plan;
  ASSIGN_OR_RETURN(plan.settings, settings_of(flags));
  const EvalSizes sizes = sizes_of(flags);
  RunFacts& facts = plan.work.facts;
  facts.seed = flags.seed;
  facts.context_tokens = sizes.context;
  facts.samples = sizes.samples;
  facts.program = KVARTO_VERSION;
  if (chosen.texts) RETURN_IF_ERROR(add_floor(plan));
  for (const Setting& setting : plan.settings) facts.settings.push_back(setting.name);
  plan.work.engines = plan.settings.size();
  plan.work.folder = flags.output;
  plan.work.keep_rows = flags.dump;

  LocalModel model;
  CountTokens count;
  if (!plan.settings.empty()) {
    ASSIGN_OR_RETURN(model, read_model(flags, plan));
    count = [words = model.tokenizer](std::string_view text) -> Result<uint32_t> {
      ASSIGN_OR_RETURN(const std::vector<TokenId> ids, words->encode(text, {.parse_special = true, .add_bos = true}));
      return static_cast<uint32_t>(ids.size());
    };
  }
  RETURN_IF_ERROR(add_servers(flags, plan, count));
  if (chosen.texts && model.tokenizer != nullptr) RETURN_IF_ERROR(add_texts(flags, *model.tokenizer, plan));
  RETURN_IF_ERROR(add_families(chosen.families, count, plan));
  RETURN_IF_ERROR(add_own_tasks(flags, count, plan));
  if (plan.work.texts.empty() && plan.work.tasks.empty()) {
    return wrong(
        "nothing is left to measure; choose more with --only, give a longer --context, or your own --tasks (texts need "
        "a MODEL that runs here)");
  }
  if (model.tokenizer != nullptr) RETURN_IF_ERROR(set_length(model.context_length, plan));
  return plan;
}

}  // namespace kvarto
