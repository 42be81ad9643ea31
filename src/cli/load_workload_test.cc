// A tokenizer of a few lines stands for the server's: a start token, and one token per word.
#include "cli/load_workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/load_random.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

uint32_t words(const std::string& text) { return 1 + static_cast<uint32_t>(std::ranges::count(text, ' ')); }
uint32_t tokens(const std::string& text) { return 1 + words(text); }

std::shared_ptr<const Filler> filler() {
  return std::make_shared<Filler>(
      *Filler::calibrate([](const std::string& text) -> Result<uint32_t> { return tokens(text); }));
}

// Words that two texts share from their start.
size_t shared_words(const std::string& a, const std::string& b) {
  const auto [end, ignored] =
      std::mismatch(a.begin(), a.begin() + static_cast<long>(std::min(a.size(), b.size())), b.begin());
  return static_cast<size_t>(std::count(a.begin(), end, ' '));
}

TEST(SplitMix64, IsVignas) {
  // First outputs of the reference program from the state 1234567: its state advances by the constant that is added
  // first here.
  EXPECT_EQ(splitmix64(1234567), 6457827717110365317u);
  EXPECT_EQ(splitmix64(1234567 + 0x9e3779b97f4a7c15u), 3203168211198807973u);
}

TEST(TokenRange, ReadsItsForms) {
  EXPECT_EQ(parse_token_range("--x", "512")->high, 512u);
  const TokenRange range = *parse_token_range("--x", "log:10-4000");
  EXPECT_TRUE(range.log && range.low == 10 && range.high == 4000);
  for (const char* bad : {"", "0", "5-", "-5", "9-3", "log:", "1e3", "10-20-30", "log:0-5", "5 "}) {
    EXPECT_FALSE(parse_token_range("--x", bad)) << bad;
  }
  EXPECT_DOUBLE_EQ(parse_time_range("--t", "500ms-2s")->low_s, 0.5);
  EXPECT_DOUBLE_EQ(parse_time_range("--t", "3s")->high_s, 3);
  EXPECT_FALSE(parse_time_range("--t", "3s-1s"));
}

TEST(TokenRange, DrawsEvenlyOrByMagnitude) {
  const TokenRange even{1, 4, false}, log{10, 1000, true};
  std::vector<int> seen(5);
  int below_100 = 0;
  for (uint64_t i = 0; i < 8000; ++i) {
    ++seen.at(even.draw(splitmix64(i)));
    const uint32_t value = log.draw(splitmix64(i));
    ASSERT_TRUE(value >= 10 && value <= 1000);
    below_100 += value < 100 ? 1 : 0;
  }
  for (int i = 1; i <= 4; ++i) EXPECT_NEAR(seen[static_cast<size_t>(i)], 2000, 200) << i;
  EXPECT_NEAR(below_100, 4000, 250);
}

TEST(Exponential, HasItsMean) {
  double sum = 0;
  for (uint64_t i = 0; i < 20000; ++i) sum += exponential(splitmix64(i), 4);
  EXPECT_NEAR(sum / 20000, 0.25, 0.01);
}

TEST(Prompts, HaveTheirLengthAndOverlap) {
  PromptOptions options{.prompt = {50, 80}, .output = {5, 5}};
  options.suffix = TokenRange{50, 50};
  options.prefix_tokens = 200;
  options.families = 2;
  const auto load = make_prompts(options, filler());
  std::set<std::string> texts, families;
  for (uint64_t i = 0; i < 40; ++i) {
    const LoadJob job = load->job(i);
    ASSERT_EQ(job.turns.size(), 1u);
    EXPECT_EQ(tokens(job.turns[0].text), 250u);
    EXPECT_EQ(job.turns[0].prompt_tokens_asked, 250u);
    EXPECT_EQ(job.turns[0].output_tokens, 5u);
    EXPECT_EQ(load->job(i).turns[0].text, job.turns[0].text);
    texts.insert(job.turns[0].text);
    size_t at = 0;
    for (int word = 0; word < 199; ++word) at = job.turns[0].text.find(' ', at + 1);
    families.insert(job.turns[0].text.substr(0, at));
  }
  EXPECT_EQ(texts.size(), 40u);
  EXPECT_EQ(families.size(), 2u);
}

TEST(Prompts, ShareAsOftenAsAsked) {
  PromptOptions options{.prompt = {100, 100}, .output = {1, 1}, .suffix = {}, .prefix_tokens = 60, .prefix_share = 0.5};
  const auto load = make_prompts(options, filler());
  // The family's words are those that the most common start has.
  std::vector<std::string> starts;
  for (uint64_t i = 0; i < 400; ++i) starts.push_back(load->job(i).turns[0].text.substr(0, 120));
  std::ranges::sort(starts);
  size_t longest = 0;
  for (size_t i = 0, run = 1; i + 1 < starts.size(); ++i) {
    run = starts[i] == starts[i + 1] ? run + 1 : 1;
    longest = std::max(longest, run);
  }
  EXPECT_NEAR(static_cast<double>(longest), 200, 40);
}

TEST(Prompts, AShortOneKeepsATokenOfItsOwn) {
  PromptOptions options{.prompt = {10, 10}, .output = {1, 1}, .suffix = {}, .prefix_tokens = 500};
  const auto load = make_prompts(options, filler());
  EXPECT_EQ(tokens(load->job(0).turns[0].text), 10u);
  EXPECT_EQ(shared_words(load->job(0).turns[0].text, load->job(1).turns[0].text), 8u);  // all but the last
  EXPECT_NE(load->job(0).turns[0].text, load->job(1).turns[0].text);
}

TEST(Chats, ShareTheSystemPromptAndThinkBetweenTurns) {
  const ChatOptions options{.turns = 3, .system_tokens = 80, .user = {20, 30}, .output = {8, 8}, .think = {1, 2}};
  const auto load = make_chats(options, filler());
  const LoadJob a = load->job(0), b = load->job(1);
  EXPECT_EQ(a.system, b.system);
  EXPECT_EQ(words(a.system), 80u);
  ASSERT_EQ(a.turns.size(), 3u);
  EXPECT_EQ(a.turns[0].think_s, 0);
  EXPECT_TRUE(a.turns[1].think_s >= 1 && a.turns[2].think_s <= 2);
  EXPECT_TRUE(words(a.turns[2].text) >= 20 && words(a.turns[2].text) <= 30);
  EXPECT_NE(a.turns[0].text, b.turns[0].text);
  EXPECT_NE(a.turns[0].text, a.turns[1].text);
}

TEST(TraceLoad, OverlapsAsItsBlocksDo) {
  const Trace trace{64, {{0, 200, 9, {1, 2, 3}}, {0.5, 150, 3, {1, 2, 7}}, {1, 70, 0, {1}}, {2, 40, 2, {}}}};
  const auto load = make_trace_load(1, false, trace, filler());
  ASSERT_EQ(load->size(), 4u);
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < 4; ++i) {
    const LoadJob job = load->job(i);
    EXPECT_EQ(tokens(job.turns[0].text), trace.requests[i].input_tokens);
    EXPECT_EQ(job.turns[0].output_tokens, std::max(1u, trace.requests[i].output_tokens));
    EXPECT_EQ(*job.arrival_s, trace.requests[i].arrival_s);
    texts.push_back(job.turns[0].text);
  }
  // 128 tokens are the start token, the opening and 126 words. What follows may agree in a word by chance.
  EXPECT_GE(shared_words(texts[0], texts[1]), 126u);
  EXPECT_LE(shared_words(texts[0], texts[1]), 130u);
  EXPECT_GE(shared_words(texts[0], texts[2]), 62u);
  EXPECT_LE(shared_words(texts[0], texts[2]), 66u);
  EXPECT_LE(shared_words(texts[0], texts[3]), 4u);
}

TEST(RequestOf, WordsAChat) {
  LoadJob job;
  job.system = "S";
  job.turns = {{.text = "one", .body = "", .output_tokens = 4}, {.text = "two", .body = "", .output_tokens = 6}};
  const RequestStyle style{.model = "m", .chat = true, .extra = R"({"top_k": 5, "temperature": 1})"};
  const LoadRequest request = request_of(style, job, 1, {"first answer"});
  EXPECT_TRUE(request.chat);
  EXPECT_EQ(request.output_tokens, 6u);
  EXPECT_EQ(Json::parse(request.body), Json::parse(R"({"messages": [{"role": "system", "content": "S"},
      {"role": "user", "content": "one"}, {"role": "assistant", "content": "first answer"},
      {"role": "user", "content": "two"}], "model": "m", "stream": true, "stream_options": {"include_usage": true},
      "temperature": 1, "max_tokens": 6, "min_tokens": 6, "ignore_eos": true, "top_k": 5})"));
}

TEST(RequestOf, WordsACompletionThatMayEnd) {
  LoadJob job;
  job.turns = {{.text = "p", .body = "", .output_tokens = 3, .prompt_tokens_asked = 2}};
  const LoadRequest request = request_of({.model = "m", .stream = false, .fixed_lengths = false}, job, 0, {});
  EXPECT_FALSE(request.chat);
  EXPECT_EQ(request.prompt_tokens_asked, 2u);
  const Json body = Json::parse(request.body);
  EXPECT_EQ(body["prompt"], "p");
  EXPECT_EQ(body["max_tokens"], 3);
  EXPECT_EQ(body["stream"], false);
  EXPECT_FALSE(body.contains("min_tokens") || body.contains("ignore_eos") || body.contains("stream_options"));
}

TEST(Lines, BringTheirOwnBodies) {
  const auto load = make_lines(R"({"prompt": "a", "max_tokens": 2, "model": "theirs"}

{"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [], "max_completion_tokens": 9}}
{"prompt": [1, 2]})",
                               TokenRange{7, 7}, 1);
  ASSERT_TRUE(load) << load.error().message;
  ASSERT_EQ((*load)->size(), 3u);
  const auto body = [&](uint64_t number) {
    const LoadRequest request = request_of({.model = "m"}, (*load)->job(number), 0, {});
    Json out = Json::parse(request.body);
    out["chat"] = request.chat;
    out["tokens"] = request.output_tokens;
    return out;
  };
  EXPECT_EQ(body(0)["model"], "m");
  EXPECT_EQ(body(0)["min_tokens"], 2);
  EXPECT_EQ(body(0)["tokens"], 2);
  EXPECT_EQ(body(1)["chat"], true);
  EXPECT_EQ(body(1)["min_tokens"], 9);
  EXPECT_FALSE(body(1).contains("max_tokens"));
  EXPECT_EQ(body(2)["max_tokens"], 7);
  for (const char* bad : {"", "\n", "x", "{}", "{\"prompt\": \"a\"}\n[]"}) {
    EXPECT_FALSE(make_lines(bad, TokenRange{}, 1)) << bad;
  }
}

}  // namespace
}  // namespace kvarto
