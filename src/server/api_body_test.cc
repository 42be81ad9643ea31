// Bodies that are no JSON, or too much of it.
#include "server/api_body.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/support/api_testing.h"

namespace kvarto {
namespace {

using namespace api_testing;

TEST(ApiRequest, BodiesThatAreNoObjects) {
  EXPECT_EQ(refused_body(kText, ""), "-: the body is empty; it must be JSON");
  EXPECT_EQ(refused_body(kText, "[]"), "-: the body must be a JSON object, got an array");
  EXPECT_EQ(refused_body(kText, "7"), "-: the body must be a JSON object, got 7");
  EXPECT_EQ(refused_body(kText, "{} x").rfind("-: the body is not JSON from byte", 0), 0u);
  EXPECT_EQ(refused_body(kText, "{\"prompt\":\"\xff\"}"), "-: the body is not valid UTF-8 from byte 11 on");
  EXPECT_EQ(refused_body(kText, "\xff"), "-: the body is not valid UTF-8 from byte 0 on");
  EXPECT_NE(refused_body(kText, R"({"prompt":"\ud800"})"), "ok");
  EXPECT_NE(refused_body(kText, R"({"prompt":"p","seed":NaN})"), "ok");
  EXPECT_EQ(refused_body(kText, R"({"prompt":"p","temperature":1e400})").rfind("temperature: ", 0), 0u);
  EXPECT_EQ(refused_body(kText, R"({"prompt":"p","x":{"y":[1,-1e999]}})").rfind("x.y[1]: ", 0), 0u);
  EXPECT_EQ(refused_body(kText, R"({"prompt":"p","n":1,"n":2})").rfind("n: n: this key comes twice", 0), 0u);
  EXPECT_EQ(refused_body(kText, R"({"prompt":"p","metadata":{"a":{"k":1,"j":2,"k":1}}})").rfind("metadata.a.k: ", 0),
            0u);
  EXPECT_EQ(refused_body(kText, R"({"prompt":[1],"prompt":[2]})").rfind("prompt", 0), 0u);
}

TEST(ApiRequest, EveryPrefixOfABodyIsRefused) {
  const std::string whole =
      body(kChat, R"("temperature":0.5,"stop":["a","\u00e9"],"logit_bias":{"3":1},"tools":[{"type":
    "function","function":{"name":"f","parameters":{"type":"object"}}}],"stream":true,"stream_options":{"include_usage":true})");
  ASSERT_TRUE(parse_api_request(kChat, whole, kLimits));
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto request = parse_api_request(kChat, whole.substr(0, size), kLimits);
    ASSERT_FALSE(request) << whole.substr(0, size);
    EXPECT_EQ(request.error().status, 400);
  }
}

TEST(ApiRequest, NestingEndsAtSixtyFourLevels) {
  const auto nested = [](size_t levels) {
    return R"({"prompt":"p","x":)" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  EXPECT_EQ(refused_body(kText, nested(63)), "ok");
  EXPECT_NE(refused_body(kText, nested(64)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refused_body(kText, nested(100'000)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refused_body(kText, R"({"prompt":)" + std::string(1 << 20, '[')), "ok");
  EXPECT_NE(refused_body(kText, std::string(1 << 20, '[')), "ok");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(refused_body(kText, objects).find("deeper than 64"), std::string::npos);
  // Also through a string that holds JSON: what is handed on stays within the 64.
  const auto arguments = [](size_t levels) {
    return R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":)" +
           std::string(levels, '[') + std::string(levels, ']') + R"(}"}}]}]})";
  };
  EXPECT_EQ(refused_body(kChat, arguments(58)), "ok");
  EXPECT_NE(refused_body(kChat, arguments(59)).find("deeper than 59"), std::string::npos);
}

size_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss);
}

TEST(ApiRequest, GreedyBodiesCostLittleMemory) {
  std::string newlines = R"({"prompt":")";
  for (int i = 0; i < 32 << 20; ++i) newlines += "\\n";
  newlines += "\"}";
  std::string ids = R"({"prompt":[1)", arrays = R"({"prompt":"p","x":[[])", keys = R"({"prompt":"p","metadata":{"0":0)";
  for (int i = 1; i < 8 << 20; ++i) ids += ",1";
  for (int i = 1; i < 8 << 20; ++i) arrays += ",[]";
  for (int i = 1; i < 1 << 20; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  ids += "]}";
  arrays += "]}";
  keys += "}}";
  std::string stops = R"("stop":["a")";
  for (int i = 1; i < 100'000; ++i) stops += ",\"a\"";
  const size_t before = peak_kib();
  EXPECT_EQ(refused_body(kText, newlines).rfind("prompt: prompt: a string of 67108864 bytes is longer than", 0), 0u);
  EXPECT_NE(refused_body(kText, ids).find("more than 4194304 token ids"), std::string::npos);
  EXPECT_NE(refused_body(kText, arrays).find("more than 262144 values"), std::string::npos);
  EXPECT_NE(refused_body(kText, keys).find("more than 1024 keys"), std::string::npos);
  EXPECT_NE(refusal(kText, stops + "]").find("stop has 100000 strings; at most 4"), std::string::npos);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own memory is many times as much
  EXPECT_LT(peak_kib() - before, size_t{64} << 10);
#else
  (void)before;
#endif
  EXPECT_TRUE(parse(kText, ""));
}

TEST(ApiRequest, LargeBiasesAreRead) {
  ApiLimits limits = kLimits;
  limits.vocabulary = 200'000;
  std::string bias;
  for (int i = 0; i < 200'000; ++i) bias += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":-1";
  const auto request = parse_api_request(kText, R"({"prompt":"p","logit_bias":{)" + bias + "}}", limits);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->sampling.logit_bias.size(), 200'000u);
}

}  // namespace
}  // namespace kvarto
