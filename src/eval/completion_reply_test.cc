// Replies of vLLM's and Kvarto's shapes, written out by hand.
#include "eval/completion_reply.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// To the prompt "the key is 4821\n", whose answer is " 4821\n"; the tokens of each test.
constexpr char kSent[] = "the key is 4821\n", kAnswer[] = " 4821\n";

// Offsets (which nobody reads) add up the tokens' characters, as vLLM and Kvarto do; the start token has `start`.
Json reply_of(const std::vector<std::pair<std::string, Json>>& tokens, size_t start = 0) {
  Json logprobs = {{"text_offset", Json::array()},
                   {"token_logprobs", Json::array()},
                   {"tokens", Json::array()},
                   {"top_logprobs", Json::array()}};
  size_t offset = 0;
  for (const auto& [text, logprob] : tokens) {
    logprobs["tokens"].push_back(text);
    logprobs["token_logprobs"].push_back(logprob);
    logprobs["text_offset"].push_back(offset);
    offset += text == "<s>" ? start : text.size();
    Json& top = logprobs["top_logprobs"].emplace_back(nullptr);
    if (!logprob.is_null()) top[text] = logprob;
  }
  Json choice = {{"index", 0}, {"text", kSent}, {"logprobs", std::move(logprobs)}};
  Json reply = {{"object", "text_completion"}, {"choices", Json::array()}};
  reply["choices"].push_back(std::move(choice));
  reply["usage"]["prompt_tokens"] = tokens.size();
  return reply;
}

Json& logprobs_in(Json& reply) { return reply["choices"].front()["logprobs"]; }

const std::vector<std::pair<std::string, Json>> kTokens = {
    {"<s>", nullptr}, {"the", -1.0}, {" key", -2.0}, {" is", -4.0}, {" 48", -0.5}, {"21", -0.25}, {"\n", -0.125}};

EchoReply read(const Json& reply, uint32_t max_tokens = 0) {
  const Result<EchoReply> out = read_echo(reply.dump(), kSent, kAnswer, max_tokens);
  EXPECT_TRUE(out) << out.error().message;
  return out ? *out : EchoReply();
}

TEST(Echo, AddsUpTheTokensOfTheAnswer) {
  for (const size_t start : {size_t{0}, size_t{3}}) {  // Kvarto counts no start token, vLLM its three characters
    const EchoReply out = read(reply_of(kTokens, start));
    EXPECT_TRUE(out.echoed);
    ASSERT_TRUE(out.likelihood);
    EXPECT_DOUBLE_EQ(out.likelihood->nll, 0.5 + 0.25 + 0.125);
    EXPECT_EQ(out.likelihood->tokens, 3u);
    EXPECT_TRUE(out.likelihood->greedy);
  }
}

TEST(Echo, ATokenThatSpansTheBorderBelongsToTheAnswer) {
  auto tokens = kTokens;
  tokens[3].first = " i";
  tokens[4].first = "s 48";
  const EchoReply out = read(reply_of(tokens));
  ASSERT_TRUE(out.likelihood);
  EXPECT_DOUBLE_EQ(out.likelihood->nll, 0.875);
  tokens = {{"the", nullptr}, {" key", -1.0}, {" is 4821\n", -3.0}};
  const EchoReply one = read(reply_of(tokens));
  ASSERT_TRUE(one.likelihood);
  EXPECT_DOUBLE_EQ(one.likelihood->nll, 3.0);
  EXPECT_EQ(one.likelihood->tokens, 1u);
}

TEST(Echo, LettersOfSeveralBytes) {
  Json reply = reply_of(kTokens);
  reply["choices"].front()["text"] = "\xc3\xa4 \xe2\x82\xac!";  // "ä €!"
  Json& logprobs = logprobs_in(reply);
  logprobs["tokens"] = {"\xc3\xa4", " \xe2\x82\xac", "!"};
  logprobs["text_offset"] = {0, 1, 3};
  logprobs["token_logprobs"] = {nullptr, -1.0, -2.0};
  logprobs["top_logprobs"] = nullptr;
  const Result<EchoReply> out = read_echo(reply.dump(), "\xc3\xa4 \xe2\x82\xac!", " \xe2\x82\xac!", 0);
  ASSERT_TRUE(out && out->likelihood);
  EXPECT_DOUBLE_EQ(out->likelihood->nll, 3.0);
  EXPECT_EQ(out->likelihood->tokens, 2u);
  EXPECT_FALSE(out->likelihood->greedy);  // nobody said so
}

TEST(Echo, WhatWasGeneratedBehindIsLeftOut) {
  auto tokens = kTokens;
  tokens.push_back({" and", -7.0});
  Json reply = reply_of(tokens);
  reply["choices"].front()["text"] = std::string(kSent) + " and";
  reply["usage"]["prompt_tokens"] = kTokens.size();
  EXPECT_DOUBLE_EQ(read(reply, 1).likelihood->nll, 0.875);
  reply.erase("usage");
  EXPECT_DOUBLE_EQ(read(reply, 1).likelihood->nll, 0.875);
  EXPECT_DOUBLE_EQ(read(reply_of(kTokens), 1).likelihood->nll, 0.875);  // nothing came
}

TEST(Echo, GreedyIsWhenEachTokenWasTheLikeliest) {
  Json reply = reply_of(kTokens);
  logprobs_in(reply)["top_logprobs"][3][" other"] = -0.01;  // in front of the answer
  EXPECT_TRUE(read(reply).likelihood->greedy);
  logprobs_in(reply)["top_logprobs"][5]["22"] = -0.24;
  EXPECT_FALSE(read(reply).likelihood->greedy);
  EXPECT_DOUBLE_EQ(read(reply).likelihood->nll, 0.875);
}

TEST(Echo, ServersThatEchoNothing) {
  const auto echoed = [](const char* reply) {
    const Result<EchoReply> out = read_echo(reply, kSent, kAnswer, 0);
    EXPECT_TRUE(out) << reply << out.error().message;
    return out && out->echoed;
  };
  EXPECT_FALSE(echoed(R"({"choices": [{"text": "", "logprobs": null}]})"));
  EXPECT_FALSE(echoed(R"({"choices": [{"text": " and", "logprobs": {"content": [{"token": " and"}]}}]})"));
  EXPECT_FALSE(echoed(R"({"choices": [{"text": " and",
      "logprobs": {"tokens": [" and"], "token_logprobs": [-1], "text_offset": [0]}}]})"));
  EXPECT_FALSE(echoed(R"({"choices": [{"text": "the key is 4821\n"}]})"));
  EXPECT_FALSE(echoed(R"({"choices": [{"text": "the key is 4821\n", "logprobs": {"content": []}}]})"));
}

TEST(Echo, TokensThatDoNotSpellTheAnswerGiveNothing) {
  auto tokens = kTokens;
  tokens[4].first = "48";  // without its space
  const EchoReply out = read(reply_of(tokens));
  EXPECT_TRUE(out.echoed);
  EXPECT_FALSE(out.likelihood);
  // An answer that begins with the first token: that has no probability.
  EXPECT_FALSE(read(reply_of({{"the key is 4821\n", nullptr}})).likelihood);
  EXPECT_FALSE(read(reply_of({{"4821\n", -1.0}})).likelihood);  // shorter than the answer
}

TEST(Echo, WrongTypesAreNamed) {
  const auto error = [](const std::function<void(Json & reply)>& damage) {
    Json reply = reply_of(kTokens);
    damage(reply);
    const Result<EchoReply> out = read_echo(reply.dump(), kSent, kAnswer, 0);
    return out ? std::string() : out.error().message;
  };
  const std::vector<std::pair<std::string, std::function<void(Json & reply)>>> cases = {
      {"reply's choices is null", [](Json& reply) { reply.erase("choices"); }},
      {"reply's choices is []", [](Json& reply) { reply["choices"] = Json::array(); }},
      {"reply's choices is null", [](Json& reply) { reply = Json::array(); }},
      {"choices[0].text is null", [](Json& reply) { reply["choices"].front().erase("text"); }},
      {"choices[0].text is 3", [](Json& reply) { reply["choices"].front()["text"] = 3; }},
      {"choices[0].logprobs.tokens is null", [](Json& reply) { reply["choices"].front()["logprobs"] = 5; }},
      {"choices[0].logprobs.tokens is \"x\"", [](Json& reply) { logprobs_in(reply)["tokens"] = "x"; }},
      {"choices[0].logprobs.tokens[2] is 7", [](Json& reply) { logprobs_in(reply)["tokens"][2] = 7; }},
      {"choices[0].logprobs.token_logprobs is []",
       [](Json& reply) { logprobs_in(reply)["token_logprobs"] = Json::array(); }},
      {"token_logprobs[5] is \"-1\"", [](Json& reply) { logprobs_in(reply)["token_logprobs"][5] = "-1"; }},
      {"token_logprobs[5] is null", [](Json& reply) { logprobs_in(reply)["token_logprobs"][5] = nullptr; }},
      {"token_logprobs[5] is 4.5", [](Json& reply) { logprobs_in(reply)["token_logprobs"][5] = 4.5; }},
      {"token_logprobs[5] is -1e+300", [](Json& reply) { logprobs_in(reply)["token_logprobs"][5] = -1e300; }},
      {"top_logprobs is {}", [](Json& reply) { logprobs_in(reply)["top_logprobs"] = Json::object(); }},
      {"top_logprobs[5] is []", [](Json& reply) { logprobs_in(reply)["top_logprobs"][5] = Json::array(); }},
      {"top_logprobs[5] is {\"a\":\"b\"}",
       [](Json& reply) {
         logprobs_in(reply)["top_logprobs"][5] = Json::object();
         logprobs_in(reply)["top_logprobs"][5]["a"] = "b";
       }},
  };
  for (const auto& [words, damage] : cases) {
    EXPECT_NE(error(damage).find(words), std::string::npos) << words << "\n" << error(damage);
  }
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_NE(read_echo("<html>", kSent, kAnswer, 0).error().message.find("not JSON"), std::string::npos);
}

// Some servers give -1 for all of them, or nothing.
TEST(Echo, PlacesDoNotMatter) {
  for (const Json& offsets : {Json::array({-1, -1, -1, -1, -1, -1, -1}), Json::array(), Json(nullptr), Json("x")}) {
    Json reply = reply_of(kTokens);
    logprobs_in(reply)["text_offset"] = offsets;
    const EchoReply out = read(reply);
    ASSERT_TRUE(out.likelihood) << offsets;
    EXPECT_DOUBLE_EQ(out.likelihood->nll, 0.875) << offsets;
  }
  Json reply = reply_of(kTokens);
  logprobs_in(reply).erase("text_offset");
  ASSERT_TRUE(read(reply).likelihood);
}

TEST(Echo, AnErrorInPlaceOfChoicesIsARefusal) {
  const auto refused = [](const char* reply) { return read_echo(reply, kSent, kAnswer, 0).error(); };
  const Error error = refused(R"({"error": {"message": "too long", "code": 400}})");
  EXPECT_EQ(error.code, ErrorCode::invalid_argument);
  EXPECT_EQ(error.message, "the reply is an error: too long");
  EXPECT_EQ(refused(R"({"choices": [], "error": "busy"})").message, "the reply is an error: busy");
  EXPECT_EQ(refused(R"({"error": null})").code, ErrorCode::corrupt);
  EXPECT_EQ(read_written(R"({"error": "busy"})").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(*read_written(R"({"error": null, "choices": [{"text": "a"}]})"), "a");
}

TEST(Written, OfCompletionsAndChats) {
  const auto written = [](const char* reply) {
    const Result<std::string> out = read_written(reply);
    return out ? *out : "error: " + out.error().message;
  };
  EXPECT_EQ(written(R"({"choices": [{"text": " 48\n"}, {"text": "second"}]})"), " 48\n");
  EXPECT_EQ(written(R"({"choices": [{"message": {"role": "assistant", "content": "hi"}}]})"), "hi");
  EXPECT_EQ(written(R"({"choices": [{"message": {"role": "assistant", "content": null}}]})"), "");
  EXPECT_EQ(written(R"({"choices": [{}]})"), "error: the reply's choices[0].text is null, not a string");
  EXPECT_EQ(written(R"({"choices": [{"message": {"content": 4}}]})"),
            "error: the reply's choices[0].message.content is 4, not a string");
  EXPECT_EQ(written(R"({"choices": ["x"]})"), "error: the reply's choices is [\"x\"], not an array with an object");
}

}  // namespace
}  // namespace kvarto
