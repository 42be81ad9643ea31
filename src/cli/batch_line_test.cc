#include "cli/batch_line.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

Request defaults() {
  Request request;
  request.sampling.max_tokens = 256;
  request.sampling.temperature = 0.0f;
  return request;
}

std::string refusal(const char* text) {
  const Result<BatchLine> line = parse_batch_line(text, defaults());
  return line ? "" : line.error().message;
}

TEST(BatchLine, ReadsThePlainDialect) {
  const auto line =
      parse_batch_line(R"({"ids": [1, 2], "max_tokens": 9, "seed": 18446744073709551615, "sample_index": 3,
      "n": 2, "temperature": 0.5, "cache_salt": "x", "stop": "end", "logit_bias": {"7": -1.5}})",
                       defaults());
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->dialect, BatchDialect::plain);
  EXPECT_EQ(line->ids, (std::vector<TokenId>{1, 2}));
  const SamplingParams& p = line->request.sampling;
  EXPECT_EQ(p.max_tokens, 9u);
  EXPECT_EQ(p.seed, UINT64_MAX);
  EXPECT_EQ(p.n, 2u);
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_EQ(p.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<TokenId, float>>{{7, -1.5f}}));
  EXPECT_EQ(line->request.sample_index, 3u);
  EXPECT_EQ(line->request.cache_salt, "x");
}

TEST(BatchLine, KeepsDefaultsOfWhatIsNotSaid) {
  const auto line = parse_batch_line(R"({"prompt": "hi", "temperature": null})", defaults());
  ASSERT_TRUE(line);
  EXPECT_EQ(line->prompt, "hi");
  EXPECT_EQ(line->request.sampling.max_tokens, 256u);
  EXPECT_EQ(line->request.sampling.temperature, 0.0f);
}

TEST(BatchLine, ReadsOpenAiLines) {
  const auto chat = parse_batch_line(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
          "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 4}})",
      defaults());
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->dialect, BatchDialect::openai_chat);
  EXPECT_EQ(chat->custom_id, "a");
  EXPECT_EQ(chat->request.sampling.max_tokens, 4u);
  EXPECT_EQ(nlohmann::json::parse(chat->messages)[0]["content"], "hi");

  const auto text = parse_batch_line(
      R"({"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5, 6]}})", defaults());
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(text->dialect, BatchDialect::openai_completion);
  EXPECT_EQ(text->ids, (std::vector<TokenId>{5, 6}));
}

TEST(BatchLine, RefusalsNameTheField) {
  EXPECT_NE(refusal("nonsense").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("{}").find("no prompt"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "ids": [1]})").find("exclude"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "best_of": 2})").find("best_of"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "max_tokens": -1})").find("max_tokens"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "max_tokens": 4294967296})").find("max_tokens"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "temperature": "hot"})").find("temperature"), std::string::npos);
  EXPECT_NE(refusal(R"({"ids": [1, 4294967297]})").find("ids"), std::string::npos);
  EXPECT_NE(refusal(R"({"ids": [1.5]})").find("ids"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "url": "/v1/completions", "body": {}})").find("method"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}})").find("url"),
            std::string::npos);
}

TEST(BatchLine, RefusesWhatReadersWouldDisagreeOn) {
  EXPECT_NE(refusal(R"({"prompt": "a", "seed": 1, "seed": 2})").find("\"seed\" comes twice"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "s\u0065ed": 1, "seed": 1})").find("\"seed\" comes twice"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "user", "content": "a", "role": "system"}]})").find("\"role\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "logit_bias": {"7": 1, "7": 2}})").find("\"7\""), std::string::npos);
  // The same key in two objects is none of it.
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})"), "");

  const auto nested = [](int levels) {  // the object itself is the first level
    const auto deep = static_cast<size_t>(levels - 1);
    return R"({"messages": )" + std::string(deep, '[') + "1" + std::string(deep, ']') + "}";
  };
  EXPECT_EQ(refusal(nested(64).c_str()), "");
  EXPECT_NE(refusal(nested(65).c_str()).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal(nested(100000).c_str()).find("deeper than 64"), std::string::npos);

  EXPECT_NE(refusal(R"({"prompt": "a", "temperature": 1e999})").find("finite"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "temperature": 1e300})").find("temperature"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "temperature": NaN})").find("not a JSON object"), std::string::npos);
}

TEST(BatchLine, ErrorsKeepTheCustomId) {
  const Error error{ErrorCode::invalid_argument, "no \"such\" thing"};
  const auto plain = nlohmann::json::parse(error_line("not json", error));
  EXPECT_EQ(plain["error"]["message"], "no \"such\" thing");
  EXPECT_FALSE(plain.contains("custom_id"));
  const auto named = nlohmann::json::parse(error_line(R"({"custom_id": "a", "body": 1})", error));
  EXPECT_EQ(named["custom_id"], "a");
  EXPECT_TRUE(named["response"].is_null());
}

}  // namespace
}  // namespace kvarto
