#include "cli/eval_plan.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "backend/backend.h"
#include "base/hash.h"
#include "base/numerics.h"
#include "cli/interrupt.h"
#include "cli/model_text.h"
#include "engine/chat.h"
#include "eval/own_tasks.h"
#include "eval/task_hash.h"
#include "eval/texts.h"
#include "format/printable.h"
#include "model/list.h"
#include "text/tokenizer.h"

namespace kvarto {
namespace {

constexpr uint32_t kShortestContext = 128, kLongestContext = 1u << 20, kMostSamples = 10'000, kMostPieces = 1000;
constexpr size_t kMostTaskBytes = size_t{64} << 20;
constexpr char kTextWord[] = "text", kNoneWord[] = "none", kDefaultCandidate[] = "kv=bf16";

tl::unexpected<Error> wrong(std::string message) { return fail(ErrorCode::invalid_argument, std::move(message)); }

// What is asked for, or what is usual. A usual context may be more than the model has: see read_model().
struct EvalSizes {
  uint32_t context = 0, samples = 0, text_pieces = 0;
};

EvalSizes sizes_of(const EvalFlags& flags) {
  return {.context = flags.context.value_or(flags.quick ? 1024 : 4096),
          .samples = flags.samples.value_or(flags.quick ? 8 : 40),
          .text_pieces = flags.text_pieces.value_or(flags.quick ? 1 : 2)};
}

// A path is not cut: its end is what tells.
std::string shown_path(const std::string& path) { return printable(path, 4096); }

Status in_range(const char* flag, uint32_t value, uint32_t low, uint32_t high) {
  if (value >= low && value <= high) return {};
  return wrong(std::string(flag) + " " + std::to_string(value) + " is not from " + std::to_string(low) + " to " +
               std::to_string(high));
}

Status check_server_flags(const EvalFlags& flags) {
  if (flags.urls.empty() && !(flags.api_key.empty() && flags.served_model.empty())) {
    return wrong("--api-key and --served-model are for a server; name it with --url");
  }
  // It would end the header that it stands in. What it is stays secret.
  if (std::ranges::any_of(flags.api_key, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    return wrong("--api-key has control characters, such as a line end; give the key alone");
  }
  return {};
}

Status check_texts(const std::vector<std::string>& texts) {
  std::set<std::filesystem::path> files;
  for (const std::string& text : texts) {
    std::error_code missing;  // which is said when it is read
    const std::filesystem::path file = std::filesystem::weakly_canonical(text, missing);
    if (missing || files.insert(file).second) continue;
    return wrong("--text " + shown_path(text) + " comes twice; give it once");
  }
  return {};
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
  RETURN_IF_ERROR(check_server_flags(flags));
  RETURN_IF_ERROR(check_texts(flags.texts));
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

// However they are written. `auto`, which a part that is not there means, is float16.
bool mean_the_same(const Setting& a, const Setting& b) {
  return a.k_dtype.value_or(KvDtype::f16) == b.k_dtype.value_or(KvDtype::f16) &&
         a.v_dtype.value_or(KvDtype::f16) == b.v_dtype.value_or(KvDtype::f16) &&
         a.fault.key_noise_db == b.fault.key_noise_db && a.fault.hidden_share == b.fault.hidden_share &&
         a.fault.seed == b.fault.seed;
}

Result<std::vector<Setting>> settings_of(const EvalFlags& flags) {
  std::vector<Setting> settings;
  if (flags.model.model.empty()) return settings;
  ASSIGN_OR_RETURN(Setting baseline, parse_setting(flags.baseline));
  settings.push_back(std::move(baseline));
  if (flags.candidates.empty() && flags.urls.empty()) {
    ASSIGN_OR_RETURN(Setting candidate, parse_setting(kDefaultCandidate));
    if (mean_the_same(candidate, settings.front())) {
      return wrong("the baseline " + kvarto::quoted(settings.front().name) +
                   " is what would be compared with it; say what is, such as --candidate kv=f16");
    }
    settings.push_back(std::move(candidate));
  }
  for (const std::string& text : flags.candidates) {
    ASSIGN_OR_RETURN(const std::vector<Setting> candidates, parse_settings(text));
    for (const Setting& candidate : candidates) {
      // One that equals the baseline shows that nothing else makes a difference.
      const auto twin = std::find_if(settings.begin() + 1, settings.end(),
                                     [&](const Setting& other) { return mean_the_same(other, candidate); });
      if (twin != settings.end()) {
        return wrong("candidate " + kvarto::quoted(candidate.name) + " is the same as " + kvarto::quoted(twin->name) +
                     "; give it once");
      }
      settings.push_back(candidate);
    }
  }
  return settings;
}

// Behind the candidates, where texts are compared: see RunFacts::noise_floor. 120 dB is a thousandth of what float16
// rounds away.
Status add_noise_floor(EvalPlan& plan) {
  if (plan.settings.front().fault.any()) return {};
  ASSIGN_OR_RETURN(Setting noise_floor, parse_setting(plan.settings.front().name + ":noise=120"));
  plan.work.facts.noise_floor = plan.settings.size();
  plan.settings.push_back(std::move(noise_floor));
  return {};
}

using CountTokens = std::function<Result<uint32_t>(std::string_view)>;

// Those behind the engines. Each is asked who it is, so that a mistake shows before hours of work; the first one counts
// tokens where no model does.
Status add_servers(const EvalFlags& flags, EvalPlan& plan, CountTokens& count) {
  RunFacts& facts = plan.work.facts;
  for (const std::string& url : flags.urls) {
    const ServerOptions options{
        .url = url, .model = flags.served_model, .api_key = flags.api_key, .cancelled = interrupted};
    ASSIGN_OR_RETURN(FoundServer server, find_server(options));
    if (std::ranges::count(facts.settings, server.url) > 0) {
      return wrong("--url " + printable(url) + " is " + server.url + ", which comes twice; give each server once");
    }
    facts.settings.push_back(server.url);
    facts.servers.push_back({.url = server.url, .model = server.model, .echoes = server.echoes});
    if (!count) {
      facts.model = server.model;
      count = server.count_tokens;
    }
    plan.servers.push_back(std::move(server));
  }
  return {};
}

struct LocalModel {
  std::shared_ptr<const Tokenizer> tokenizer;  // null: there is none
  std::shared_ptr<const ChatRenderer> chat;
  uint32_t context_length = 0;
};

Result<LocalModel> read_model(const EvalFlags& flags, EvalPlan& plan) {
  ASSIGN_OR_RETURN(plan.options, engine_options(flags.model, kTasksTogether));
  ASSIGN_OR_RETURN(const std::string path, find_model(flags.model));
  ASSIGN_OR_RETURN(plan.file, GgufFile::open(path));
  ASSIGN_OR_RETURN(const ModelConfig config, read_config(*plan.file));
  ASSIGN_OR_RETURN(const ModelText text, ModelText::read(*plan.file));
  const LocalModel model{.tokenizer = text.tokenizer,
                         .chat = std::make_shared<ChatRenderer>(text.chat_template, text.tokenizer),
                         .context_length = config.context_length};
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
  if (!flags.context && facts.context_tokens > config.context_length) {
    facts.context_tokens = config.context_length;
    plan.notes.push_back("--context is " + std::to_string(config.context_length) + ", all that the model has");
  }
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

// Of messages at a server about: what its template writes around them comes to as much as their JSON.
Result<uint32_t> prompt_tokens(const Task& task, const LocalModel& model, const CountTokens& count) {
  if (task.messages.empty() || model.chat == nullptr) return count(task.prompt + task.messages);
  ASSIGN_OR_RETURN(const std::string prompt, model.chat->render({.messages = task.messages}));
  return count(prompt);
}

Result<std::string> read_tasks(const std::string& path) {
  Result<std::string> content = read_input(path, kMostTaskBytes);
  if (content || content.error().code != ErrorCode::invalid_argument) return content;
  return wrong(shown_path(path) + ": longer than 64 MiB; cut it in parts");
}

Status measure_own_task(const std::string& name, const LocalModel& model, const CountTokens& count,
                        uint32_t context_tokens, Task& task) {
  const Result<uint32_t> length = prompt_tokens(task, model, count);
  if (!length) return fail(length.error().code, name + ": " + length.error().message);
  task.length_tokens = *length;
  if (task.length_tokens > context_tokens) {
    return wrong(name + " has " + std::to_string(task.length_tokens) + " tokens" +
                 (task.messages.empty() ? "" : " with what its chat template adds") +
                 "; give --context that much or more");
  }
  if (task.answer.empty()) return {};
  ASSIGN_OR_RETURN(const uint32_t answer_tokens, count(task.answer));
  task.max_tokens = std::max(task.max_tokens, answer_tokens);
  return {};
}

Status add_own_tasks(const EvalFlags& flags, const LocalModel& model, const CountTokens& count, EvalPlan& plan) {
  if (flags.tasks.empty()) return {};
  RunFacts& facts = plan.work.facts;
  ASSIGN_OR_RETURN(const std::string content, read_tasks(flags.tasks));
  Result<std::vector<Task>> parsed = parse_own_tasks(content);
  if (!parsed) return fail(parsed.error().code, shown_path(flags.tasks) + ": " + parsed.error().message);
  std::vector<Task>& tasks = *parsed;
  std::set<std::string_view> taken;
  for (const Task& task : plan.work.tasks) taken.insert(task.id);
  for (Task& task : tasks) {
    const std::string name = "task " + kvarto::quoted(task.id) + " of " + shown_path(flags.tasks);
    if (taken.contains(task.id)) return wrong(name + " has the id of another one; give it its own");
    RETURN_IF_ERROR(measure_own_task(name, model, count, facts.context_tokens, task));
  }
  Sha256 hash;
  hash.update(content);
  facts.own_tasks_sha256 = to_hex(hash.finish());
  std::ranges::stable_sort(tasks, {}, &Task::family);
  for (Task& task : tasks) {
    if (facts.families.empty() || facts.families.back() != task.family) facts.families.push_back(task.family);
    plan.work.tasks.push_back(std::move(task));
  }
  return {};
}

// The context, and behind it what the longest answer takes, as far as the model goes. Families stay within the context.
Status set_length(uint32_t context_length, EvalPlan& plan) {
  uint32_t answer = 0;
  for (const Task& task : plan.work.tasks) {
    // What a model wrote, which is measured of the user's, may be more tokens when it is read again.
    answer = std::max(answer, task.skill == Skill::own ? 2 * task.max_tokens : task.max_tokens);
  }
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
  const bool compares_texts = chosen.texts && plan.settings.size() > 1;
  if (compares_texts) RETURN_IF_ERROR(add_noise_floor(plan));
  if (chosen.texts && !compares_texts) plan.notes.emplace_back("servers get no texts");
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
  if (compares_texts) RETURN_IF_ERROR(add_texts(flags, *model.tokenizer, plan));
  RETURN_IF_ERROR(add_families(chosen.families, count, plan));
  RETURN_IF_ERROR(add_own_tasks(flags, model, count, plan));
  facts.tasks_sha256 = tasks_sha256(plan.work.tasks);
  if (plan.work.texts.empty() && plan.work.tasks.empty()) {
    return wrong(
        "nothing is left to measure; choose more with --only, give a longer --context, or your own --tasks (texts need "
        "a candidate that runs here)");
  }
  if (model.tokenizer != nullptr) RETURN_IF_ERROR(set_length(model.context_length, plan));
  return plan;
}

}  // namespace kvarto
