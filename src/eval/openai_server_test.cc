// The parts that need no wire; the rest is tested by server_subject_test.cc and tests/http/bench_serve_test.py.
#include "eval/openai_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "http/server.h"

namespace kvarto {
namespace {

using Json = nlohmann::json;

TEST(ErrorLine, FindsTheMessage) {
  EXPECT_EQ(error_line(R"({"error":{"message":"no such model","type":"NotFoundError"}})"), "no such model");
  EXPECT_EQ(error_line(R"({"error":"busy"})"), "busy");
  EXPECT_EQ(error_line(R"({"error":{"code":5}})"), R"({"code":5})");
  EXPECT_EQ(error_line(R"({"error":null,"message":"m"})"), "m");
  EXPECT_EQ(error_line(R"({"detail":"Not Found"})"), "Not Found");
  EXPECT_EQ(error_line("<html>\n<body>"), "<html>");
}

TEST(RetryAfter, IsANumberOfSeconds) {
  const auto of = [](const char* value) {
    HttpReply reply;
    reply.headers = {{"retry-after", value}};
    return retry_after_s(reply);
  };
  EXPECT_EQ(of("7"), 7);
  EXPECT_EQ(of("-3"), 0);
  EXPECT_EQ(of("nan"), 0);
  EXPECT_EQ(of("1e300"), 1e9);
  EXPECT_EQ(of("inf"), 1e9);
  EXPECT_EQ(of("Wed, 21 Oct 2026 07:28:00 GMT"), 0);
  EXPECT_EQ(retry_after_s(HttpReply()), 0);
}

TEST(WithQuestion, OnlyWhereThereIsNoRemedyYet) {
  EXPECT_EQ(with_question({ErrorCode::network, "http://a/;b: closed"}, "is it up?"), "http://a/;b: closed; is it up?");
  EXPECT_EQ(with_question({ErrorCode::network, "http://a/: shut; open it"}, "is it up?"), "http://a/: shut; open it");
}

TEST(WholeBody, EndsWhereItShould) {
  std::string text;
  bool ended = false;
  const BodySink sink = whole_body(
      "URL", size_t{1} << 20, [&] { return ended; }, text);
  EXPECT_TRUE(sink.data("ab"));
  EXPECT_TRUE(sink.data("c"));
  EXPECT_EQ(text, "abc");
  EXPECT_TRUE(sink.data(std::string((size_t{1} << 20) - 3, 'x')));
  EXPECT_EQ(sink.data("y").error().message, "URL: a reply longer than 1 MiB");
  ended = true;
  EXPECT_EQ(sink.data("").error().code, ErrorCode::network);
}

class FoundOn : public testing::Test {
 protected:
  // One that answers `status` and `body` to everything, and keeps what was asked.
  Result<OpenAiServer> find(int status, const std::string& body, const OpenAiOptions& extra = {}) {
    HttpServerOptions options;
    options.port = 0;
    Result<std::unique_ptr<HttpServer>> started = HttpServer::start(
        options,
        [this, status, body](std::shared_ptr<HttpExchange> exchange) {
          const std::string* key = exchange->request().header("Authorization");
          asked_ = exchange->request().method + " " + exchange->request().path + " " + (key == nullptr ? "" : *key);
          exchange->reply({status, {}, body});
        },
        [](int refused, std::string_view message) {
          return ServerReply{refused, {}, std::string(message)};
        });
    EXPECT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
    url_ = "http://127.0.0.1:" + std::to_string(server_->port()) + "/";
    OpenAiOptions wanted = extra;
    wanted.url = url_ + extra.url;
    return OpenAiServer::find(wanted);
  }
  std::string error(int status, const std::string& body, const OpenAiOptions& extra = {}) {
    const Result<OpenAiServer> found = find(status, body, extra);
    if (found) return "";
    std::string message = found.error().message;
    if (message.starts_with(url_)) message.replace(0, url_.size(), "URL/");  // which has another port each time
    return message;
  }

  std::string url_, asked_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(FoundOn, TakesTheFirstModelOrTheWantedOne) {
  const std::string two = R"({"data": [7, {"id": 3}, {"id": "a"}, {"id": "b"}]})";
  EXPECT_EQ(find(200, two)->model(), "a");
  EXPECT_EQ(asked_, "GET /v1/models ");
  EXPECT_EQ(find(200, two, {.url = "", .model = "b", .api_key = "k"})->model(), "b");
  EXPECT_EQ(asked_, "GET /v1/models Bearer k");
  const std::string shown = find(200, two, {.url = "in/front/v1/"})->shown_url();
  EXPECT_EQ(shown, url_ + "in/front/");
  EXPECT_EQ(asked_, "GET /in/front/v1/models ");
  EXPECT_EQ(error(200, two, {.url = "", .model = "c"}), "the server has no model \"c\"; it has a, b");
  EXPECT_EQ(find(404, "", {.url = "", .model = "c"})->model(), "c");
}

TEST_F(FoundOn, SaysWhatIsWrong) {
  for (const char* body : {"", "[]", "{}", R"({"data": 5})", R"({"data": []})", R"({"data": [{"id": 5}]})"}) {
    EXPECT_EQ(error(200, body), "URL/v1/models lists no model; is this a server of OpenAI's API?") << body;
  }
  EXPECT_EQ(error(401, ""), "URL/v1/models wants a key; give it with --api-key");
  EXPECT_EQ(error(403, "", {.url = "", .model = {}, .api_key = "k"}),
            "URL/v1/models does not accept this key; give another with --api-key");
  EXPECT_EQ(error(500, R"({"error": "fell over"})"), "URL/v1/models answers 500: fell over");
  EXPECT_EQ(error(500, ""), "URL/v1/models answers 500");
  EXPECT_NE(OpenAiServer::find({.url = "ftp://x"}).error().message.find("--url"), std::string::npos);
}

TEST_F(FoundOn, TellsWhetherOneRequestIsRefusedOrAll) {
  const Result<OpenAiServer> server = find(200, R"({"data": [{"id": "m"}]})");
  ASSERT_TRUE(server);
  const auto code = [&](int status) {
    HttpReply reply;
    reply.status = status;
    reply.error_text = "no";
    return server->refusal("v1/completions", reply).code;
  };
  for (const int status : {400, 405, 413, 422}) EXPECT_EQ(code(status), ErrorCode::invalid_argument) << status;
  for (const int status : {204, 302, 401, 403, 429, 500, 503}) EXPECT_EQ(code(status), ErrorCode::network) << status;
  EXPECT_EQ(code(404), ErrorCode::not_found);
  EXPECT_EQ(code(501), ErrorCode::unsupported);
}

TEST_F(FoundOn, NamesAnAddressInOneWay) {
  const std::string models = R"({"data": [{"id": "m"}]})";
  for (const char* behind : {"", "/", "v1", "v1/", "/v1//"}) {
    const Result<OpenAiServer> server = find(200, models, {.url = behind});
    ASSERT_TRUE(server) << behind << server.error().message;
    EXPECT_EQ(server->shown_url(), url_) << behind;
    const std::string bare = url_.substr(std::string("http://").size());
    EXPECT_EQ(OpenAiServer::find({.url = bare + behind})->shown_url(), url_) << behind;
  }
}

TEST_F(FoundOn, CountsTokens) {
  const Result<OpenAiServer> server = find(200, R"({"data": [{"id": "m"}]})");
  ASSERT_TRUE(server);
  EXPECT_EQ(Json::parse(server->tokenize_body("a \"b")),
            Json::parse(R"({"model": "m", "prompt": "a \"b", "content": "a \"b", "add_special": true})"));
  EXPECT_EQ(server->tokens_of(R"({"tokens": [1, 2, 3]})"), 3u);
  EXPECT_EQ(Json::parse(server->one_token_body("x", false)),
            Json::parse(R"({"prompt": "x", "model": "m", "stream": false, "temperature": 0, "max_tokens": 1})"));
  EXPECT_EQ(Json::parse(server->one_token_body("x", true))["messages"],
            Json::parse(R"([{"role": "user", "content": "x"}])"));
  EXPECT_EQ(server->prompt_tokens_of(R"({"usage": {"prompt_tokens": 12}})"), 12u);
  for (const char* body : {"", "[]", "{}", R"({"tokens": 3, "usage": 4})", R"({"usage": {"prompt_tokens": -1}})",
                           R"({"usage": {"prompt_tokens": 4294967296}})"}) {
    EXPECT_FALSE(server->tokens_of(body)) << body;
    EXPECT_FALSE(server->prompt_tokens_of(body)) << body;
  }
}

}  // namespace
}  // namespace kvarto
