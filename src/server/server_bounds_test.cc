// What one request may cost the others: bodies that are refused unread, texts and lists that are too long, a full
// inbox.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "http/testing.h"
#include "server/scripted_engine.h"
#include "server/server_testing.h"

namespace kvarto {
namespace {

using http_testing::Answer;
using http_testing::RawClient;
using Json = nlohmann::ordered_json;

constexpr const char* kJson = "Content-Type: application/json\r\n";

class ServerBounds : public ServedTest {
 protected:
  void serve(ServeOptions options, const std::string& script) {
    listen(std::move(options));
    ASSERT_NE(server_, nullptr);
    ServedTest::serve(scripted_engine(script, {}));
  }
  Answer post(const std::string& path, const std::string& body) {
    return RawClient(server_->port()).ask(http_testing::post(path, body, kJson));
  }
  // A 400 about that field.
  void expect_refused(const Answer& answer, const std::string& field) {
    EXPECT_EQ(answer.status, 400) << answer.head;
    const Json body = Json::parse(answer.body, nullptr, false);
    ASSERT_TRUE(body.is_object()) << answer.body;
    EXPECT_EQ(body["error"]["param"], field) << answer.body;
  }
};

std::string repeated(const std::string& item, size_t count) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += (i > 0 ? "," : "") + item;
  return "[" + list + "]";
}

constexpr const char* kPlain = R"({"answers": [{"pieces": ["ok"]}]})";

// Only the head is sent: whoever waits for the body waits for ever.
TEST_F(ServerBounds, HeadsAreEnoughToRefuse) {
  ServeOptions options;
  options.api_keys = {"secret"};
  serve(std::move(options), kPlain);
  const auto ask = [&](const std::string& line, const std::string& more) {
    return RawClient(server_->port())
        .ask(line + " HTTP/1.1\r\nHost: h\r\nContent-Length: 20000000\r\n" + more + "\r\n");
  };
  const std::string key = "Authorization: Bearer secret\r\n";
  for (const std::string line : {"POST /v1/chat/completions", "POST /nothing", "GET /metrics"}) {
    const Answer answer = ask(line, kJson);
    EXPECT_EQ(answer.status, 401) << line;
    EXPECT_EQ(answer.body, R"({"error":"Unauthorized"})") << line;
    EXPECT_TRUE(answer.has("WWW-Authenticate: Bearer")) << line;
  }
  EXPECT_EQ(ask("POST /nothing", key).status, 404);
  EXPECT_EQ(ask("GET /tokenize", key).status, 405);
  EXPECT_EQ(ask("POST /tokenize", key + "Content-Type: text/plain\r\n").status, 400);
  EXPECT_EQ(ask("GET /v1/models", key).status, 413);
  EXPECT_EQ(ask("POST /ping", "").status, 413);  // open, and takes no body
  // A whole one, and one of which the server is asked first.
  const std::string body = R"({"prompt": ")" + std::string(100'000, 'x') + R"("})";
  EXPECT_EQ(RawClient(server_->port()).ask(http_testing::post("/tokenize", body, key + kJson)).status, 200);
  RawClient asking(server_->port());
  asking.send("POST /tokenize HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n" + key + kJson + "\r\n");
  EXPECT_EQ(asking.answer().status, 100);
  EXPECT_EQ(asking.ask(body).status, 200);
}

TEST_F(ServerBounds, DetokenizeSpellsOnlySoMuch) {
  serve({}, R"({"answers": [{"pieces": [")" + std::string(4096, 'y') + R"("]}]})");
  const Answer fits = post("/detokenize", R"({"tokens": )" + repeated("258", 2000) + "}");
  EXPECT_EQ(fits.status, 200);
  EXPECT_GT(fits.body.size(), 2000u * 4096);
  expect_refused(post("/detokenize", R"({"tokens": )" + repeated("258", 3000) + "}"), "tokens");  // 12 MB
  EXPECT_EQ(post("/detokenize", R"({"tokens": )" + repeated("65", 3000) + "}").status, 200);
}

TEST_F(ServerBounds, TokenizeSpellsOnlySoManyTokens) {
  serve({}, kPlain);
  const auto body = [](size_t bytes, bool strings) {
    return R"({"prompt": ")" + std::string(bytes, 'x') + R"(", "return_token_strs": )" + (strings ? "true}" : "false}");
  };
  EXPECT_EQ(post("/tokenize", body(300'000, false)).status, 200);
  expect_refused(post("/tokenize", body(300'000, true)), "return_token_strs");
  EXPECT_EQ(post("/tokenize", body(200'000, true)).status, 200);
}

// A small body must not make a reply of a hundred megabytes.
TEST_F(ServerBounds, SoManyLogprobsAreInOneReply) {
  serve({}, kPlain);
  const auto ask = [&](const std::string& prompt, const std::string& fields) {
    return post("/v1/completions", R"({"temperature": 1, "max_tokens": 1, "prompt": )" + prompt + ", " + fields + "}");
  };
  const std::string texts = repeated("\"" + std::string(400, 'x') + "\"", 48), ids = repeated("7", 2000);
  const Answer refused = ask(texts, R"("prompt_logprobs": 20)");  // 48 * 400 * 21
  expect_refused(refused, "prompt_logprobs");
  EXPECT_NE(refused.body.find("403200"), std::string::npos) << refused.body;
  EXPECT_NE(refused.body.find("200000"), std::string::npos) << refused.body;
  EXPECT_NE(refused.body.find("fewer"), std::string::npos) << refused.body;
  expect_refused(ask(ids, R"("n": 64, "echo": true, "logprobs": 5)"), "logprobs");
  expect_refused(ask(ids, R"("n": 64, "echo": true, "logprobs": 5, "stream": true)"), "logprobs");
  expect_refused(
      post("/v1/completions", R"({"temperature": 1, "max_tokens": 1000, "n": 64, "logprobs": 5, "prompt": "x"})"),
      "logprobs");
  EXPECT_EQ(ask(ids, R"("n": 2, "echo": true, "logprobs": 5)").status, 200);
  EXPECT_EQ(ask(ids, R"("prompt_logprobs": 20)").status, 200);
  const std::string chat = R"("messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 20)";
  EXPECT_EQ(post("/v1/chat/completions", R"({"max_tokens": 8000, )" + chat + "}").status, 200);
  EXPECT_EQ(post("/v1/chat/completions", "{" + chat + "}").status, 200);
  const std::string three = R"({"max_tokens": 8000, "n": 3, "temperature": 1, )" + chat;
  EXPECT_EQ(post("/v1/chat/completions", three + R"(, "stream": true})").status, 200);
  expect_refused(post("/v1/chat/completions", three + "}"), "top_logprobs");
}

// A text that is to be truncated has to be cut into tokens whole, so it has a limit of its own.
TEST_F(ServerBounds, WhatIsTruncatedHasALimit) {
  serve({}, kPlain);
  const auto chat = [](size_t bytes) {
    const std::string text = R"("content": ")" + std::string(bytes, 'x') + R"("})";
    return R"({"truncate_prompt_tokens": 5, "max_tokens": 1, "messages": [{"role": "user", )" + text +
           R"(, {"role": "user", )" + text + "]}";
  };
  const Answer fits = post("/v1/chat/completions", chat(100'000));
  ASSERT_EQ(fits.status, 200) << fits.body;
  EXPECT_EQ(Json::parse(fits.body)["usage"]["prompt_tokens"], 5);
  expect_refused(post("/v1/chat/completions", chat(5'000'000)), "truncate_prompt_tokens");
}

// Also when its beginning is a chat that is known: `input_text` says that nothing was cut into tokens.
TEST_F(ServerBounds, ALongTurnOfAKnownChatIsRefusedByItsBytes) {
  serve({}, kPlain);
  const std::string first = R"({"role": "user", "content": "hi"})";
  ASSERT_EQ(post("/v1/chat/completions", R"({"messages": [)" + first + "]}").status, 200);
  const std::string next = R"({"messages": [)" + first + R"(, {"role": "assistant", "content": "ok"},
                              {"role": "user", "content": ")";
  EXPECT_EQ(post("/v1/chat/completions", next + R"(more"}]})").status, 200);
  expect_refused(post("/v1/chat/completions", next + std::string(200'000, 'x') + R"("}]})"), "input_text");
}

// An overload, which no client is to blame for.
TEST_F(ServerBounds, AFullInboxIsAnOverload) {
  ServeOptions options;
  options.load_tracking = true;
  serve(std::move(options), kPlain);
  server_->stall(3'600'000'000);
  const std::string body = R"({"max_tokens": 1, "prompt": )" + repeated("\"x\"", 1024) + "}";
  std::vector<RawClient> waiting;
  for (int i = 0; i < 64; ++i) {
    waiting.emplace_back(server_->port());
    ASSERT_TRUE(waiting.back().send(http_testing::post("/v1/completions", body, kJson)));
  }
  const auto load = [&] { return RawClient(server_->port()).ask(http_testing::get("/load")).body; };
  ASSERT_TRUE(http_testing::eventually([&] { return load() == R"({"server_load":64})"; })) << load();
  const Answer refused = post("/v1/completions", R"({"max_tokens": 1, "prompt": "x"})");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_EQ(refused.value("Retry-After"), "1");
  EXPECT_NE(refused.body.find("65536 requests are waiting"), std::string::npos) << refused.body;
  const std::string metrics = RawClient(server_->port()).ask(http_testing::get("/metrics")).body;
  EXPECT_NE(metrics.find(R"(vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0)"),
            std::string::npos);
}

}  // namespace
}  // namespace kvarto
