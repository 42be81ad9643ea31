#include "server/reply.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "server/exchange_testing.h"
#include "server/scripted_engine.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> chunks_of(const std::string& stream) {
  std::vector<Json> all;
  for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos;) {
    const size_t end = stream.find("\n\n", at);
    all.push_back(Json::parse(stream.substr(at + 6, end - at - 6)));
    at = end;
  }
  return all;
}

// The choices of all chunks so far, one after the other.
std::vector<Json> choices_of(const std::string& stream) {
  std::vector<Json> all;
  for (const Json& chunk : chunks_of(stream)) {
    if (chunk.contains("choices")) all.insert(all.end(), chunk["choices"].begin(), chunk["choices"].end());
  }
  return all;
}

struct Streamed {
  explicit Streamed(uint32_t n, uint32_t prompts = 1, ReplyOptions options = {}) {
    options.stream = true;
    options.id = "cmpl-1";
    options.model = "tiny";
    options.n = n;
    options.include_usage = true;
    reply = std::make_shared<Reply>(
        options,
        std::vector<ReplyPrompt>(prompts, ReplyPrompt{.text = std::make_shared<std::string>(options.echo ? "abc" : ""),
                                                      .ids = std::make_shared<std::vector<TokenId>>(3, 1)}),
        exchange, *engine, [](uint32_t, const RequestResult&) {}, [] {}, [] {});
  }
  void token(uint32_t prompt, uint32_t sample, const std::string& text, FinishReason finish = FinishReason::none,
             const std::string& stop = "") {
    EngineEvent event;
    event.prompt = prompt;
    event.sample = sample;
    event.token = 65;
    event.text = text;
    event.finish = finish;
    event.stop_string = stop;
    reply->take(std::move(event));
  }
  void result(uint32_t prompt, const std::vector<std::pair<FinishReason, std::string>>& samples) {
    EngineEvent event;
    event.prompt = prompt;
    event.result = std::make_unique<RequestResult>();
    event.result->cached_tokens = 2;
    for (const auto& [finish, stop] : samples) {
      SampleResult sample;
      sample.finish = finish;
      sample.stop_string = stop;
      sample.tokens = {65, 65};
      event.result->samples.push_back(std::move(sample));
    }
    reply->take(std::move(event));
  }
  std::vector<Json> choices() const { return choices_of(exchange->written); }

  std::unique_ptr<Engine> engine = *scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {});
  std::shared_ptr<RecordedExchange> exchange = std::make_shared<RecordedExchange>();
  std::shared_ptr<Reply> reply;
};

TEST(Reply, AChoiceThatEndsEarlyIsToldSoAtOnce) {
  Streamed stream(2);
  stream.token(0, 0, "a");
  stream.token(0, 1, "b");
  stream.token(0, 0, "c", FinishReason::stop, "END");
  ASSERT_EQ(stream.choices().size(), 3u);
  const Json last = stream.choices().back();
  EXPECT_EQ(last["index"], 0);
  EXPECT_EQ(last["text"], "c");
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(last["stop_reason"], "END");

  stream.token(0, 1, "d");
  EXPECT_EQ(stream.choices().back()["text"], "d");
  stream.token(0, 1, "e", FinishReason::length);
  stream.result(0, {{FinishReason::stop, "END"}, {FinishReason::length, ""}});
  std::vector<Json> ends;
  for (const Json& choice : stream.choices()) {
    if (!choice["finish_reason"].is_null()) ends.push_back(choice);
  }
  ASSERT_EQ(ends.size(), 2u) << stream.exchange->written;
  EXPECT_EQ(ends[1]["index"], 1);
  EXPECT_EQ(ends[1]["text"], "e");
  EXPECT_EQ(ends[1]["finish_reason"], "length");
  EXPECT_EQ(ends[1]["stop_reason"], nullptr);
  EXPECT_TRUE(stream.exchange->finished);
  EXPECT_NE(stream.exchange->written.find("\"cached_tokens\":2"), std::string::npos);
  EXPECT_TRUE(stream.exchange->written.ends_with("data: [DONE]\n\n"));
}

// The server counts tickets to know what still runs.
TEST(Reply, ATicketEndsWithTheAnswer) {
  const auto held = [](const std::function<void(Streamed&)>& end) {
    Streamed stream(1);
    auto ticket = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = ticket;
    stream.reply->hold(std::move(ticket));
    stream.token(0, 0, "a");
    EXPECT_FALSE(watched.expired());
    end(stream);
    return !watched.expired();
  };
  EXPECT_TRUE(held([](Streamed&) {}));
  EXPECT_FALSE(held([](Streamed& stream) { stream.result(0, {{FinishReason::stop, ""}}); }));
  EXPECT_FALSE(held([](Streamed& stream) { stream.reply->break_off(status_error(500, "planted")); }));
  EXPECT_FALSE(held([](Streamed& stream) { stream.reply->refuse(status_error(400, "planted")); }));
}

TEST(Reply, PromptsEndOnTheirOwn) {
  Streamed stream(1, 2);
  stream.token(0, 0, "a", FinishReason::length);
  stream.result(0, {{FinishReason::length, ""}});
  ASSERT_EQ(stream.choices().size(), 1u);
  EXPECT_EQ(stream.choices()[0]["finish_reason"], "length");
  EXPECT_FALSE(stream.exchange->finished);
  stream.token(1, 0, "b", FinishReason::length);
  stream.result(1, {{FinishReason::length, ""}});
  EXPECT_EQ(stream.choices().size(), 2u);
  EXPECT_TRUE(stream.exchange->finished);
}

// The prompt's log-probabilities come first, with the text of the prompt and the first token, in each of the choices.
TEST(Reply, AStreamedEchoWithLogprobsBeginsWithThePrompt) {
  ReplyOptions options;
  options.echo = true;
  options.choice.logprobs = 0;
  Streamed stream(2, 1, options);
  const std::vector<PromptLogprob> scores = {
      {.token = 97}, {.token = 98, .logprob = -1.5f}, {.token = 99, .logprob = -2.5f}};
  for (const FinishReason finish : {FinishReason::none, FinishReason::length}) {
    for (uint32_t s = 0; s < 2; ++s) {
      EngineEvent event;
      event.sample = s;
      event.token = 65;
      event.text = "A";
      event.logprob = -0.25f;
      event.finish = finish;
      if (finish == FinishReason::none && s == 0) event.prompt_logprobs = scores;
      stream.reply->take(std::move(event));
      const bool all_have_them = finish != FinishReason::none || s == 1;
      EXPECT_EQ(stream.reply->scores_kept() == 0, all_have_them) << s;
    }
    if (finish != FinishReason::none) continue;
    ASSERT_EQ(stream.choices().size(), 2u) << "nothing waits for the result";
    for (const Json& choice : stream.choices()) EXPECT_EQ(choice["text"], "abcA");
  }
  EngineEvent end;
  end.result = std::make_unique<RequestResult>();
  end.result->prompt_logprobs = scores;
  SampleResult sample;
  sample.finish = FinishReason::length;
  sample.tokens = {65, 65};
  end.result->samples = {sample, sample};
  stream.reply->take(std::move(end));
  for (uint32_t s = 0; s < 2; ++s) {
    Json values = Json::array(), offsets = Json::array();
    std::string text;
    for (const Json& choice : stream.choices()) {
      if (choice["index"] != s) continue;
      text += choice["text"].get<std::string>();
      for (const Json& one : choice["logprobs"]["token_logprobs"]) values.push_back(one);
      for (const Json& one : choice["logprobs"]["text_offset"]) offsets.push_back(one);
    }
    EXPECT_EQ(text, "abcAA") << s;
    EXPECT_EQ(values, Json::parse("[null,-1.5,-2.5,-0.25,-0.25]")) << s;
    EXPECT_EQ(offsets, Json::parse("[0,1,2,3,4]")) << s;
  }
}

// As long as a stream may run.
TEST(Reply, LogprobsOfThePromptThatNoChunkShowsAreNotKept) {
  ReplyOptions no_echo, no_logprobs, chat;
  no_logprobs.echo = chat.echo = true;
  no_echo.choice.logprobs = chat.choice.logprobs = 0;
  chat.chat = chat.choice.chat = true;
  for (const ReplyOptions& options : {no_echo, no_logprobs, chat}) {
    Streamed stream(1, 1, options);
    EngineEvent event;
    event.token = 65;
    event.text = "A";
    if (options.choice.logprobs) event.logprob = -0.25f;
    event.prompt_logprobs = {{.token = 97}, {.token = 98, .logprob = -1.5f}};
    stream.reply->take(std::move(event));
    ASSERT_FALSE(stream.choices().empty());
    EXPECT_EQ(stream.reply->scores_kept(), 0u) << options.chat << options.echo;
  }
}

// Beams, and prompts that are only scored, have no event before their result.
TEST(Reply, AStreamedEchoWithoutTokensBringsThePromptsLogprobs) {
  ReplyOptions options;
  options.echo = true;
  options.choice.logprobs = 0;
  Streamed stream(1, 1, options);
  EngineEvent end;
  end.result = std::make_unique<RequestResult>();
  end.result->prompt_logprobs = {{.token = 97}, {.token = 98, .logprob = -1.5f}};
  end.result->samples.resize(1);
  end.result->samples[0].finish = FinishReason::length;
  stream.reply->take(std::move(end));
  ASSERT_EQ(stream.choices().size(), 1u);
  EXPECT_EQ(stream.choices()[0]["text"], "abc");
  EXPECT_EQ(stream.choices()[0]["logprobs"]["token_logprobs"], Json::parse("[null,-1.5]"));
}

// The front thread hands a long one away, and makes it itself where nobody takes it.
TEST(Reply, ALongAnswerIsMadeElsewhere) {
  const std::unique_ptr<Engine> engine = *scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {});
  for (const auto& [scores, takes] : {std::pair{10, true}, std::pair{10'000, true}, std::pair{10'000, false}}) {
    const auto exchange = std::make_shared<RecordedExchange>();
    auto ticket = std::make_shared<int>();
    std::vector<std::function<void()>> handed;
    ReplyOptions options;
    options.show_prompt_logprobs = true;
    const auto reply = std::make_shared<Reply>(
        options, std::vector<ReplyPrompt>(1), exchange, *engine, [](uint32_t, const RequestResult&) {}, [] {}, [] {});
    reply->make_long_ones([&, takes = takes](std::function<void()> work) {
      if (takes) handed.push_back(std::move(work));
      return takes;
    });
    reply->hold(ticket);
    EngineEvent event;
    event.result = std::make_unique<RequestResult>();
    event.result->prompt_logprobs.resize(static_cast<size_t>(scores), {.token = 65, .logprob = -1.0f});
    event.result->samples.resize(1);
    reply->take(std::move(event));
    EXPECT_TRUE(reply->done());
    const bool away = takes && scores > 10;
    EXPECT_EQ(handed.size(), away ? 1u : 0u);
    EXPECT_EQ(exchange->written.empty(), away);
    EXPECT_EQ(ticket.use_count(), away ? 2 : 1) << "it counts as running until it is answered";
    for (const auto& work : handed) work();
    EXPECT_EQ(ticket.use_count(), 1);
    const Json body = Json::parse(exchange->written);
    EXPECT_EQ(body["choices"][0]["prompt_logprobs"].size(), static_cast<size_t>(scores));
  }
}

// Two prompts of which different lengths were cached: chunks tell of their own, the last one of both.
TEST(Reply, EveryChunksUsageSaysWhatWasCached) {
  ReplyOptions options;
  options.continuous_usage = true;
  Streamed stream(1, 2, options);
  for (const FinishReason finish : {FinishReason::none, FinishReason::length}) {
    for (uint32_t p = 0; p < 2; ++p) {
      EngineEvent event;
      event.prompt = p;
      event.token = 65;
      event.text = "A";
      event.finish = finish;
      event.cached_tokens = p + 1;
      stream.reply->take(std::move(event));
    }
  }
  for (uint32_t p = 0; p < 2; ++p) {
    EngineEvent event;
    event.prompt = p;
    event.result = std::make_unique<RequestResult>();
    event.result->cached_tokens = p + 1;
    event.result->samples.resize(1);
    event.result->samples[0].finish = FinishReason::length;
    event.result->samples[0].tokens = {65, 65};
    stream.reply->take(std::move(event));
  }
  std::vector<Json> chunks = chunks_of(stream.exchange->written);
  ASSERT_EQ(chunks.size(), 5u);
  EXPECT_EQ(chunks.back()["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  chunks.pop_back();
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["usage"]["prompt_tokens_details"]["cached_tokens"], chunk["choices"][0]["index"].get<int>() + 1)
        << chunk;
  }
}

// The choices that had ended keep their ends; then there is the error, and no word of the one that failed.
TEST(Reply, AFailedRequestEndsWithItsError) {
  Streamed stream(2);
  stream.token(0, 0, "a", FinishReason::stop);
  stream.token(0, 1, "b");
  EngineEvent failed;
  failed.sample = 1;
  failed.finish = FinishReason::error;
  stream.reply->take(std::move(failed));
  EngineEvent event;
  event.result = std::make_unique<RequestResult>();
  event.result->error = Error{ErrorCode::internal, "planted"};
  event.result->samples.resize(2);
  stream.reply->take(std::move(event));
  EXPECT_TRUE(stream.exchange->finished);
  EXPECT_NE(stream.exchange->written.find("\"finish_reason\":\"stop\""), std::string::npos);
  EXPECT_EQ(stream.exchange->written.find("\"finish_reason\":\"error\""), std::string::npos);
  EXPECT_NE(stream.exchange->written.find("data: {\"error\""), std::string::npos) << stream.exchange->written;
}

}  // namespace
}  // namespace kvarto
