#include "eval/engine_subject.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>

#include "base/file.h"
#include "eval/text_score.h"

namespace kvarto {
namespace {

std::unique_ptr<Engine> load(const std::string& setting, EngineOptions options = {}, const char* model = "tiny_llama") {
  const auto file = GgufFile::open(KVARTO_SOURCE_DIR "/tests/tiny/" + std::string(model) + ".gguf").value();
  options.threads = 1;
  options.kv_cache_memory_bytes = 8 << 20;
  if (options.max_model_len == 0) options.max_model_len = 512;
  auto engine = load_setting(file, options, parse_setting(setting).value());
  if (!engine) throw std::runtime_error(engine.error().message);
  return std::move(*engine);
}

const std::string kStory =
    "The lighthouse keeper wrote down the weather every evening: wind from the north, rain at four, a red sky. His cat "
    "slept on the stove. In the drawer lay a key with the number 4711, and nobody knew which door it was for. ";

Task question(std::string answer, std::string prompt = kStory + "The key's number is") {
  Task task;
  task.id = "key-1";
  task.prompt = std::move(prompt);
  task.answer = std::move(answer);
  return task;
}

Likelihood likelihood(Engine& engine, const Task& task, bool floor = false) {
  return engine_subject(engine)->likelihood(task, floor).value().value();
}

// From all logits of the whole text, in long double.
double nll_by_score(Engine& engine, const std::string& prompt, const std::string& answer) {
  std::vector<TokenId> ids = engine.encode(prompt).value();
  const size_t first = ids.size();
  const std::vector<TokenId> behind = engine.encode(answer, true, false).value();
  ids.insert(ids.end(), behind.begin(), behind.end());
  long double nll = 0;
  EXPECT_TRUE(engine.score(ids, [&](size_t position, std::span<const float> logits) {
    if (position + 1 < first || position + 1 >= ids.size()) return;
    long double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<long double>(x));
    nll += std::log(sum) - logits[static_cast<size_t>(ids[position + 1])];
  }));
  return static_cast<double>(nll);
}

TEST(EngineSubject, LikelihoodIsThatOfTheWholeAnswer) {
  for (const char* model : {"tiny_llama", "tiny_qwen2", "tiny_llama3", "tiny_gemma3"}) {
    SCOPED_TRACE(model);
    const auto engine = load("kv=f16", {}, model);
    for (const char* answer : {" 4711.\n", "x", " a longer answer, of more tokens than a block: 0123456789"}) {
      const Task task = question(answer);
      const Likelihood found = likelihood(*engine, task);
      EXPECT_EQ(found.tokens, engine->encode(answer, true, false).value().size());
      EXPECT_NEAR(found.nll, nll_by_score(*engine, task.prompt, answer), 1e-9 * found.nll);
    }
    EXPECT_EQ(engine->stats().kv.blocks_active, 0u);
  }
}

TEST(EngineSubject, AWarmCacheChangesNoBit) {
  for (const char* model : {"tiny_llama", "tiny_gemma3"}) {  // full layers; windows
    SCOPED_TRACE(model);
    const auto engine = load("kv=f16", {}, model);
    const Task task = question(" 4711.\n");
    const double cold = likelihood(*engine, task).nll;
    EXPECT_EQ(engine->stats().kv.hit_tokens, 0u);
    EXPECT_EQ(likelihood(*engine, task).nll, cold);
    const uint64_t hits = engine->stats().kv.hit_tokens;
    EXPECT_GT(hits, 0u);
    // Another answer, cold and behind the same prompt.
    const Task other = question(" 4712, or so");
    const double warm = likelihood(*engine, other).nll;
    EXPECT_GT(engine->stats().kv.hit_tokens, hits);
    ASSERT_TRUE(engine->reset_prefix_cache());
    EXPECT_EQ(likelihood(*engine, other).nll, warm);
    EXPECT_NE(warm, cold);
  }
}

// An answer behind a prompt that fills its last block: it is computed, although the cache has it.
TEST(EngineSubject, ThePromptsLastTokenIsComputed) {
  const auto engine = load("kv=f16");
  std::string prompt;
  while (engine->encode(prompt).value().size() != 32) prompt += '7';
  const double cold = likelihood(*engine, question(" a", prompt)).nll;
  likelihood(*engine, question(kStory, prompt));  // blocks beyond the prompt
  EXPECT_EQ(likelihood(*engine, question(" a", prompt)).nll, cold);
}

// What argmax writes is greedy, and another token is not. Random models write what cannot be encoded back now and then.
TEST(EngineSubject, GreedyIsWhatItWouldWrite) {
  const auto engine = load("kv=f16");
  const auto subject = engine_subject(*engine);
  int judged = 0;
  for (int i = 0; i < 40; ++i) {
    Task task = question("", kStory.substr(0, 60 + 3 * static_cast<size_t>(i)));
    task.max_tokens = 2;
    const Task* const tasks[] = {&task};
    std::string text;
    ASSERT_TRUE(subject->generate(tasks, [&](size_t, Result<std::string> written) -> Status {
      text = std::move(written).value();
      return {};
    }));
    const RequestResult result = engine
                                     ->generate({.prompt = engine->encode(task.prompt).value(),
                                                 .sampling = {.max_tokens = 2, .temperature = 0.0f}})
                                     .value();
    EXPECT_EQ(text, result.samples[0].text);
    const auto ids = engine->encode(text, true, false);
    if (!ids || *ids != result.samples[0].tokens) continue;
    ++judged;
    task.answer = text;
    const Likelihood right = likelihood(*engine, task);
    EXPECT_TRUE(right.greedy);
    task.answer = ids->front() == engine->encode("q", true, false).value().front() ? "z" : "q";
    EXPECT_FALSE(likelihood(*engine, task).greedy);
    task.answer = text + "no, it never would write that";
    EXPECT_FALSE(likelihood(*engine, task).greedy);
  }
  EXPECT_GE(judged, 3);
}

TEST(EngineSubject, FloorsAndWhatCannotBeAsked) {
  const auto engine = load("kv=f16");
  const auto subject = engine_subject(*engine);
  Task task = question(" 4711");
  EXPECT_EQ(subject->likelihood(task, true).value().has_value(), false);
  task.floor_prompt = "The key's number is";
  EXPECT_EQ(likelihood(*engine, task, true).nll, likelihood(*engine, question(" 4711", task.floor_prompt)).nll);
  EXPECT_NE(likelihood(*engine, task, true).nll, likelihood(*engine, task).nll);
  task.answer.clear();
  EXPECT_EQ(subject->likelihood(task, false).value().has_value(), false);
}

TEST(EngineSubject, MessagesGoThroughTheTemplate) {
  const auto engine = load("kv=f16");
  Task task = question(" 4711", "");
  task.messages = R"([{"role": "user", "content": "Which number?"}])";
  const std::string rendered = engine->render_chat(task.messages).value();
  EXPECT_NE(rendered.find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(likelihood(*engine, task).nll, likelihood(*engine, question(" 4711", rendered)).nll);
  task.messages = "[]";
  const auto refused = engine_subject(*engine)->likelihood(task, false);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("task \"key-1\": messages"), std::string::npos);
}

TEST(EngineSubject, TasksThatAreTooLongAreNamed) {
  const auto engine = load("kv=f16", {.max_model_len = 64});
  const auto subject = engine_subject(*engine);
  const Task task = question(" 4711");
  ASSERT_GT(engine->encode(task.prompt).value().size(), 64u);
  const auto refused = subject->likelihood(task, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message.find("task \"key-1\": a prompt of "), 0u);
  EXPECT_NE(refused.error().message.find("exceeds max_model_len 64; give shorter tasks, or a longer --context"),
            std::string::npos);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);

  const Task fine = question("", "short");
  const Task* const tasks[] = {&fine, &task};
  int written = 0;
  std::optional<Error> error;
  ASSERT_TRUE(subject->generate(tasks, [&](size_t index, Result<std::string> text) -> Status {
    EXPECT_EQ(text.has_value(), index == 0);
    if (text) ++written;
    if (!text) error = text.error();
    return {};
  }));
  EXPECT_EQ(written, 1);  // the other goes on
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message.find("task \"key-1\": "), 0u);
  EXPECT_NE(error->message.find("64"), std::string::npos);
  EXPECT_EQ(error->code, ErrorCode::invalid_argument);
  EXPECT_TRUE(engine->idle());
  Task empty = question(" a", "");
  EXPECT_NE(subject->likelihood(empty, false).error().message.find("has no tokens"), std::string::npos);
}

std::vector<Task> many_tasks(size_t n) {
  std::vector<Task> tasks(n);
  for (size_t i = 0; i < n; ++i) {
    tasks[i].id = "t" + std::to_string(i);
    tasks[i].prompt = kStory.substr(i * 3) + std::to_string(i);
    tasks[i].max_tokens = static_cast<uint32_t>(1 + i % 20);
    if (i % 3 == 0) tasks[i].stop = {"e", "\n"};
  }
  return tasks;
}

TEST(EngineSubject, GeneratesEachTaskAsAlone) {
  const auto engine = load("kv=f16"), alone = load("kv=f16");
  const std::vector<Task> tasks = many_tasks(30);
  std::vector<const Task*> pointers;
  for (const Task& task : tasks) pointers.push_back(&task);
  std::vector<std::optional<std::string>> texts(tasks.size());
  ASSERT_TRUE(engine_subject(*engine)->generate(pointers, [&](size_t index, Result<std::string> text) -> Status {
    EXPECT_FALSE(texts[index]) << "told twice";
    texts[index] = std::move(text).value();
    return {};
  }));
  for (size_t i = 0; i < tasks.size(); ++i) {
    const RequestResult want =
        alone
            ->generate({.prompt = alone->encode(tasks[i].prompt).value(),
                        .sampling = {.max_tokens = tasks[i].max_tokens, .temperature = 0.0f, .stop = tasks[i].stop}})
            .value();
    ASSERT_TRUE(texts[i]);
    EXPECT_EQ(*texts[i], want.samples[0].text);
    for (const std::string& stop : tasks[i].stop) EXPECT_EQ(texts[i]->find(stop), std::string::npos);
  }
  EXPECT_TRUE(engine_subject(*engine)->generate({}, nullptr));
}

TEST(EngineSubject, GeneratingEndsWithWhatDoneFailsWith) {
  const auto engine = load("kv=f16");
  const std::vector<Task> tasks = many_tasks(30);
  std::vector<const Task*> pointers;
  for (const Task& task : tasks) pointers.push_back(&task);
  int calls = 0;
  const Status ended = engine_subject(*engine)->generate(pointers, [&](size_t, const Result<std::string>&) -> Status {
    if (++calls < 3) return {};
    return fail(ErrorCode::cancelled, "enough");
  });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::cancelled);
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->stats().kv.blocks_active, 0u);
}

TEST(EngineSubject, ALikelihoodCanBeCancelledInTheMiddle) {
  const auto engine = load("kv=f16", {.max_model_len = 1536});
  std::string prompt;
  while (engine->encode(prompt).value().size() < 1000) prompt += kStory;
  const Task task = question(" 4711.\n", prompt);
  const double whole = likelihood(*engine, task).nll;
  ASSERT_TRUE(engine->reset_prefix_cache());
  int asked = 0;
  const auto impatient = engine_subject(*engine, {.cancelled = [&] { return ++asked == 3; }});
  const auto ended = impatient->likelihood(task, false);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::cancelled);
  EXPECT_EQ(asked, 3);
  const uint64_t computed = engine->cache().match(engine->encode(prompt).value()).tokens;
  EXPECT_GT(computed, 0u);
  EXPECT_LE(computed, 600u);
  EXPECT_EQ(engine->stats().kv.blocks_active, 0u);
  EXPECT_EQ(impatient->likelihood(task, false).value()->nll, whole);  // in parts or not, cold or warm
}

// --- overflows

// Its last norm has no numbers for weights, and so have its logits.
std::unique_ptr<Engine> overflowing() {
  static std::string content = read_file(KVARTO_SOURCE_DIR "/tests/tiny/tiny_llama.gguf").value();
  const auto file = GgufFile::parse(std::as_bytes(std::span<const char>(content))).value();
  const std::span<const std::byte> norm = file->find_tensor("output_norm.weight")->bytes;
  const auto at = static_cast<size_t>(reinterpret_cast<const char*>(norm.data()) - content.data());
  std::fill_n(content.begin() + static_cast<ptrdiff_t>(at), norm.size(), '\xff');  // in every type of float
  EngineOptions options;
  options.threads = 1;
  options.reference = true;
  options.kv_cache_memory_bytes = 8 << 20;
  options.max_model_len = 512;
  return load_setting(file, options, parse_setting("kv=f16").value()).value();
}

TEST(EngineSubject, WhatOverflowsIsAnErrorOfTheBaselineAndMeasuredOfOthers) {
  const auto engine = overflowing();
  const Task task = question(" 4711.\n");
  const Task* const tasks[] = {&task};
  const auto baseline = engine_subject(*engine);
  const auto refused = baseline->likelihood(task, false);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("task \"key-1\": the answer's likelihood is no number"), std::string::npos);
  EXPECT_NE(refused.error().code, ErrorCode::invalid_argument);  // no matter of this task
  std::optional<Result<std::string>> text;
  const auto keep = [&](size_t, Result<std::string> written) -> Status {
    text = std::move(written);
    return {};
  };
  ASSERT_TRUE(baseline->generate(tasks, keep));
  ASSERT_TRUE(text && !*text);
  EXPECT_NE(text->error().code, ErrorCode::invalid_argument);

  const auto candidate = engine_subject(*engine, {.may_overflow = true});
  const Likelihood found = candidate->likelihood(task, false).value().value();
  EXPECT_EQ(found.nll, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(found.greedy);
  EXPECT_EQ(found.tokens, engine->encode(task.answer, true, false).value().size());
  ASSERT_TRUE(candidate->generate(tasks, keep));
  EXPECT_EQ(text->value(), "");
}

// --- settings

TEST(LoadSetting, KeepsKeysAndValuesAsItSays) {
  EXPECT_EQ(load("kv=bf16")->info().kv_dtype, "bfloat16");
  EXPECT_EQ(load("k=f32:v=bf16")->info().kv_dtype, "float32/bfloat16");
  EXPECT_EQ(load("v=bf16", {.k_dtype = KvDtype::f32})->info().kv_dtype, "float32/bfloat16");
  EXPECT_EQ(load("hide=0")->info().kv_dtype, "float16");
}

// A block that was computed under one fault is not found under another.
TEST(LoadSetting, FaultsHaveBlocksOfTheirOwn) {
  std::set<std::string> names;
  for (const char* setting : {"kv=f16", "noise=10", "noise=10.000000001", "hide=0.1", "noise=10:hide=0.1", "kv=bf16"}) {
    EXPECT_TRUE(names.insert(load(setting)->cache().options().name_space).second) << setting;
  }
  EXPECT_FALSE(names.insert(load("k=f16:v=f16:hide=0")->cache().options().name_space).second);
}

std::vector<TokenRow> rows_of(const std::string& setting, std::span<const TokenRow> baseline = {},
                              const char* model = "tiny_llama") {
  const auto engine = load(setting, {.reference = true}, model);
  std::vector<TokenId> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i * i * 31 % 509);
  std::vector<TokenRow> rows;
  const Status scored = score_text(*engine, ids, baseline, [&](const TokenRow& row) -> Status {
    rows.push_back(row);
    return {};
  });
  EXPECT_TRUE(scored) << scored.error().message;
  return rows;
}

double mean_divergence(const std::string& setting, std::span<const TokenRow> baseline, const char* model) {
  const std::vector<TokenRow> rows = rows_of(setting, baseline, model);
  EXPECT_EQ(rows.size(), baseline.size());
  double sum = 0;
  for (size_t i = 0; i < rows.size(); ++i) sum += divergence(baseline[i], rows[i]);
  return sum / static_cast<double>(rows.size());
}

TEST(LoadSetting, FaultsShowInTheOrderOfTheirSize) {
  for (const char* model : {"tiny_llama", "tiny_gemma3"}) {
    SCOPED_TRACE(model);
    const std::vector<TokenRow> baseline = rows_of("kv=f16", {}, model);
    const auto cost = [&](const char* setting) { return mean_divergence(setting, baseline, model); };
    EXPECT_EQ(cost("k=f16:v=f16:hide=0"), 0.0);
    const double faint = cost("noise=80"), some = cost("noise=40"), loud = cost("noise=10");
    EXPECT_LT(faint, some);
    EXPECT_LT(some, loud);
    EXPECT_GT(loud, 1e-3);
    const double few = cost("hide=0.1"), half = cost("hide=0.5");
    EXPECT_GT(few, 1e-4);
    EXPECT_LT(few, half);
    EXPECT_GT(cost("kv=bf16"), 0.0);
  }
}

// A fault depends on the place of a token alone: a cache hit and other tasks beside change nothing.
TEST(LoadSetting, FaultsAreTheSameWithAWarmCache) {
  for (const char* setting : {"noise=10", "hide=0.3"}) {
    const auto engine = load(setting, {.max_num_batched_tokens = 48}), whole = load(setting), good = load("kv=f16");
    const Task task = question(" 4711.\n");
    const double cold = likelihood(*engine, task).nll;
    EXPECT_EQ(likelihood(*engine, task).nll, cold);
    EXPECT_GT(engine->stats().kv.hit_tokens, 0u);
    EXPECT_EQ(likelihood(*whole, task).nll, cold);
    EXPECT_NE(likelihood(*good, task).nll, cold);
  }
}

}  // namespace
}  // namespace kvarto
