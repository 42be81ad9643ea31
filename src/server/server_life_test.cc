// The server as a whole, in this process and over HTTP: how it drains, what it tells while its engine stalls, and after
// the engine broke. Nothing here is judged by the clock.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/testing.h"
#include "http/testing.h"
#include "server/exchange_testing.h"
#include "server/scripted_engine.h"
#include "server/server_testing.h"

namespace kvarto {
namespace {

using http_testing::Answer;
using http_testing::eventually;
using http_testing::RawClient;

constexpr uint64_t kForEverUs = 3'600'000'000;
constexpr const char* kEndless = R"({"answers": [{"pieces": ["one ", "two "]}], "endless": true, "step_us": 1000})";

class ServerLife : public ServedTest {
 protected:
  Answer ask(const std::string& request) { return RawClient(server_->port()).ask(request); }
  Answer get(const std::string& path) { return ask(http_testing::get(path)); }
  static std::string completion(const std::string& body) {
    return http_testing::post("/v1/completions", body, "Content-Type: application/json\r\n");
  }
  // The value of the one series whose name and labels begin so, as it is spelled.
  static std::string value_of(const std::string& metrics, const std::string& series) {
    const size_t at = ("\n" + metrics).find("\n" + series);
    if (at == std::string::npos) return "absent";
    const size_t from = metrics.find(' ', at) + 1;
    return metrics.substr(from, metrics.find('\n', from) - from);
  }
};

bool refused_for_leaving(const Answer& answer) {
  return answer.status == 503 && answer.has("Connection: close") && !answer.value("Retry-After").empty() &&
         answer.body.find("The server is shutting down") != std::string::npos;
}

TEST_F(ServerLife, BeforeTheModelIsThereOnlyLifeIsTold) {
  listen({});
  const std::string ask_for_text = completion(R"({"prompt": "x", "max_tokens": 1})");
  for (const std::string& request : {http_testing::get("/health"), http_testing::get("/v1/models"),
                                     http_testing::get("/metrics"), ask_for_text, completion("no JSON")}) {
    const Answer answer = ask(request);
    EXPECT_EQ(answer.status, 503) << request;
    EXPECT_FALSE(answer.value("Retry-After").empty()) << request;
    EXPECT_NE(answer.body.find("server_overloaded"), std::string::npos) << answer.body;
  }
  EXPECT_NE(get("/health").body.find("Loading model"), std::string::npos);
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(get("/version").status, 200);

  serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(ask(ask_for_text).status, 200);
}

TEST_F(ServerLife, DrainingRefusesWhatIsNewAndFinishesWhatRuns) {
  listen({});
  serve(scripted_engine(kEndless, {}));
  RawClient running(server_->port()), kept(server_->port());
  running.send(completion(R"({"prompt": "x", "stream": true, "max_tokens": 8000})"));
  ASSERT_NE(running.receive_until("\"text\""), "");
  ASSERT_EQ(kept.ask(http_testing::get("/health")).status, 200);

  std::future<bool> drained = std::async(std::launch::async, [&] { return server_->drain(std::chrono::hours(1)); });
  ASSERT_TRUE(eventually([&] { return get("/health").status == 503; }));
  EXPECT_TRUE(refused_for_leaving(get("/health")));
  EXPECT_TRUE(refused_for_leaving(ask(completion(R"({"prompt": "x"})"))));
  EXPECT_TRUE(refused_for_leaving(get("/v1/models")));
  EXPECT_TRUE(refused_for_leaving(kept.ask(completion(R"({"prompt": "x"})"))));
  EXPECT_EQ(kept.receive_all(), "");
  EXPECT_FALSE(kept.hung()) << "the connection is not closed";
  kept.leave();
  for (const char* path : {"/ping", "/metrics", "/version"}) {
    const Answer answer = get(path);
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_TRUE(answer.has("Connection: close")) << path;
  }
  EXPECT_NE(running.receive_until("two"), "") << "the running stream goes on";
  running.leave();
  EXPECT_TRUE(drained.get());
  EXPECT_TRUE(eventually([&] { return !RawClient(server_->port()).connected(); })) << "the listener closes behind it";
}

TEST_F(ServerLife, DrainingEndsAtItsLimit) {
  listen({});
  serve(scripted_engine(kEndless, {}));
  RawClient running(server_->port());
  running.send(completion(R"({"prompt": "x", "stream": true, "max_tokens": 8000})"));
  ASSERT_NE(running.receive_until("\"text\""), "");
  EXPECT_FALSE(server_->drain(std::chrono::milliseconds(20)));
  EXPECT_FALSE(RawClient(server_->port()).connected());
  server_.reset();
  const std::string rest = running.receive_all();
  EXPECT_EQ(rest.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(rest.find("\"code\":\"server_overloaded\""), std::string::npos) << rest;
  EXPECT_NE(rest.find("data: [DONE]"), std::string::npos) << rest;
  EXPECT_FALSE(running.hung());
}

// Also those that the engine, which stands still, has not begun with.
TEST_F(ServerLife, WhoeverWaitsIsToldThatTheServerEnds) {
  ServeOptions served;
  served.load_tracking = true;
  listen(std::move(served));
  serve(scripted_engine(kEndless, {}));
  server_->stall(kForEverUs);
  RawClient whole(server_->port()), streamed(server_->port());
  whole.send(completion(R"({"prompt": "x", "max_tokens": 8000})"));
  streamed.send(completion(R"({"prompt": "x", "stream": true, "max_tokens": 8000})"));
  ASSERT_TRUE(eventually([&] { return get("/load").body == R"({"server_load":2})"; }));
  EXPECT_FALSE(server_->drain(std::chrono::milliseconds(20)));
  for (RawClient* const client : {&whole, &streamed}) {
    const Answer answer = client->answer();
    EXPECT_EQ(answer.status, 503) << answer.head;
    EXPECT_NE(answer.body.find("has shut down"), std::string::npos) << answer.body;
    EXPECT_FALSE(answer.value("Retry-After").empty());
  }
  server_->stall(0);
}

// What was accepted before is finished, also when it had not come to the engine yet.
TEST_F(ServerLife, DrainingKeepsWhatWaits) {
  listen({});
  EngineOptions options;
  options.max_num_seqs = 1;
  serve(scripted_engine(kEndless, options), options);
  RawClient first(server_->port()), second(server_->port());
  first.send(completion(R"({"prompt": "x", "stream": true, "max_tokens": 1000})"));
  ASSERT_NE(first.receive_until("\"text\""), "");
  second.send(completion(R"({"prompt": "x", "max_tokens": 3})"));
  ASSERT_TRUE(eventually([&] { return value_of(get("/metrics").body, "vllm:num_requests_waiting{") == "1.0"; }));
  std::future<bool> drained = std::async(std::launch::async, [&] { return server_->drain(std::chrono::hours(1)); });
  EXPECT_NE(first.receive_until("[DONE]").find("\"finish_reason\":\"length\""), std::string::npos);
  const Answer answer = second.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.body.find("\"completion_tokens\":3"), std::string::npos) << answer.body;
  first.leave();
  second.leave();
  EXPECT_TRUE(drained.get());
}

std::string names_of(const std::string& metrics) {
  std::istringstream lines(metrics);
  std::string names;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) names += line.substr(0, line.rfind(' ')) + "\n";
  }
  return names;
}

TEST_F(ServerLife, MetricsOfABusyEngineLackNothing) {
  constexpr const char* kCached =
      R"(kvarto:kv_blocks{engine="0",group="0",kind="full",model_name="tiny",state="cached"})";
  listen({});
  serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
  // 33 tokens of prompt: two full blocks.
  ASSERT_EQ(ask(completion(R"({"prompt": "123456789012345678901234567890123", "max_tokens": 1})")).status, 200);
  Answer fresh;
  ASSERT_TRUE(eventually([&] {
    fresh = get("/metrics");
    return value_of(fresh.body, kCached) == "2.0";
  })) << fresh.body;
  EXPECT_EQ(value_of(fresh.body, "kvarto:kv_blocks_stale_seconds"), "0.0");

  server_->stall(kForEverUs);
  Answer stale;
  ASSERT_TRUE(eventually([&] {
    stale = get("/metrics");
    return value_of(stale.body, "kvarto:kv_blocks_stale_seconds") != "0.0";
  }));
  EXPECT_EQ(value_of(stale.body, kCached), "2.0");
  EXPECT_EQ(names_of(stale.body), names_of(fresh.body));
  server_->stall(0);
  EXPECT_TRUE(eventually([&] { return value_of(get("/metrics").body, "kvarto:kv_blocks_stale_seconds") == "0.0"; }));
}

TEST_F(ServerLife, AStalledEngineIsNotHealthyUntilItGoesOn) {
  ServeOptions options;
  options.health = {.tick_us = 60'000'000, .stall_us = 100'000};
  options.sse_keep_alive_s = 1000;  // looks five times a second
  listen(options);
  serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
  EXPECT_EQ(get("/health").status, 200);
  server_->stall(kForEverUs);
  RawClient waiting(server_->port());
  waiting.send(completion(R"({"prompt": "x", "max_tokens": 1})"));
  Answer health;
  ASSERT_TRUE(eventually([&] {
    health = get("/health");
    return health.status == 503;
  }));
  EXPECT_NE(health.body.find("no token was computed for"), std::string::npos) << health.body;
  EXPECT_EQ(get("/ping").status, 200);
  server_->stall(0);
  EXPECT_EQ(waiting.answer().status, 200);
  EXPECT_TRUE(eventually([&] { return get("/health").status == 200; }));
  EXPECT_EQ(value_of(get("/metrics").body, "kvarto:watchdog_pushes_total"), "0.0") << "a stall is no wedge";
}

TEST_F(ServerLife, AnIdleLoopThatDoesNotTickIsNotHealthy) {
  ServeOptions options;
  options.health = {.tick_us = 2'000'000, .stall_us = 60'000'000};  // it ticks once a second
  options.sse_keep_alive_s = 1000;
  listen(options);
  serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
  server_->stall(kForEverUs);
  Answer health;
  ASSERT_TRUE(eventually([&] {
    health = get("/health");
    return health.status == 503;
  }));
  EXPECT_NE(health.body.find("did not tick"), std::string::npos) << health.body;
  server_->stall(0);
  EXPECT_TRUE(eventually([&] { return get("/health").status == 200; }));
}

TEST_F(ServerLife, TheContractIsToldWhileTheModelIsLoaded) {
  ServeOptions options;
  options.max_prompts = 7;
  listen(options);
  const Answer loading = get("/openapi.json");
  EXPECT_EQ(loading.status, 200);
  std::string dense = loading.body;
  std::erase_if(dense, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_NE(dense.find("\"maxItems\":7"), std::string::npos) << "limits that are known are told";
  serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
  EXPECT_EQ(get("/openapi.json").status, 200);
}

TEST_F(ServerLife, AModelWithoutAChatTemplateCompletesTexts) {
  FakeEngine fake;
  listen({});
  serve(std::move(fake.engine));
  EXPECT_EQ(ask(completion(R"({"prompt": [1, 2, 3], "max_tokens": 1})")).status, 200);
  server_.reset();  // before what the engine uses
}

// By either thread. An admission is rejected only where something was to be admitted.
TEST_F(ServerLife, WhatNobodyHasRoomToReadIsRefused) {
  constexpr const char* kRejected = R"(vllm:admission_rejections_total{model_name="tiny",reason="text_queue"})";
  for (const bool is_long : {false, true}) {
    ServeOptions options;
    (is_long ? options.long_text_limits : options.text_limits).works = 0;
    listen(options);
    serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
    const std::string body = R"({"prompt": ")" + std::string(is_long ? 300'000u : 1u, 'x') + R"("})";
    for (const char* path : {"/tokenize", "/detokenize"}) {
      EXPECT_EQ(ask(http_testing::post(path, body, "Content-Type: application/json\r\n")).status, 503) << path;
    }
    EXPECT_EQ(value_of(get("/metrics").body, kRejected), "0.0") << is_long;
    const Answer refused = ask(completion(body));
    EXPECT_EQ(refused.status, 503) << is_long;
    EXPECT_FALSE(refused.value("Retry-After").empty());
    EXPECT_EQ(value_of(get("/metrics").body, kRejected), "1.0") << is_long;
    EXPECT_EQ(ask(completion(R"({"prompt": "x", "max_tokens": 1})")).status, is_long ? 200 : 503);
    EXPECT_TRUE(server_->drain(std::chrono::hours(1))) << "it is not counted as running";
  }
}

// Its client is there, and nothing can be written to it, the error neither.
class BrokenExchange : public RecordedExchange {
 public:
  using RecordedExchange::RecordedExchange;
  void start(ServerReply) override { throw std::runtime_error("planted"); }
  bool write(std::string) override { throw std::runtime_error("planted"); }
};

// Left alone it would come to its 8000 tokens, which is no abort.
TEST_F(ServerLife, AnAnswerThatCannotBeWrittenStopsTheEngine) {
  listen({});
  serve(scripted_engine(kEndless, {}));
  ServerRequest request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.headers = {{"Content-Type", "application/json"}};
  request.body = R"({"prompt": ["x", "y"], "stream": true, "max_tokens": 8000})";
  server_->take(std::make_shared<BrokenExchange>(std::move(request)));
  const auto aborted = [&] {
    return value_of(get("/metrics").body, R"(vllm:request_success_total{engine="0",finished_reason="abort")");
  };
  ASSERT_TRUE(eventually([&] { return aborted() == "2.0"; })) << aborted();
  Answer metrics;
  EXPECT_TRUE(eventually([&] {
    metrics = get("/metrics");
    return value_of(metrics.body, "vllm:num_requests_running{") == "0.0";
  }));
  // The other prompt may not have been scheduled yet.
  const std::string decoding =
      value_of(metrics.body, R"(kvarto:aborted_requests_total{engine="0",model_name="tiny",state="decode")");
  EXPECT_TRUE(decoding == "1.0" || decoding == "2.0") << decoding;
  EXPECT_EQ(value_of(metrics.body, R"(vllm:request_success_total{engine="0",finished_reason="length")"), "0.0");
  EXPECT_TRUE(server_->drain(std::chrono::hours(1))) << "it is not counted as running";
}

TEST_F(ServerLife, ATraceWithOtherBlocksStopsTheStart) {
  const http_testing::TempFolder folder;
  ServeOptions options;
  options.record = folder.file("trace.jsonl");
  std::ofstream(options.record)
      << R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1],"block_size":32})"
      << "\n";
  listen(std::move(options));
  auto engine = scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {});
  ASSERT_TRUE(engine) << engine.error().message;
  const Status served = server_->serve(std::move(*engine), {});
  ASSERT_FALSE(served);
  EXPECT_NE(served.error().message.find("--block-size 32"), std::string::npos) << served.error().message;
}

// Scrapes that come together get one snapshot; each gets an answer, also when the engine answers late.
TEST_F(ServerLife, ScrapesThatWaitTogetherAreAllAnswered) {
  listen({});
  serve(scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {}));
  server_->stall(kForEverUs);
  RawClient first(server_->port()), second(server_->port()), third(server_->port());
  for (RawClient* client : {&first, &second, &third}) client->send(http_testing::get("/metrics"));
  for (RawClient* client : {&first, &second, &third}) EXPECT_EQ(client->answer().status, 200);
  EXPECT_EQ(first.ask(http_testing::get("/metrics")).status, 200) << "the engine has not answered the others";
  server_->stall(0);
  EXPECT_TRUE(eventually([&] { return value_of(get("/metrics").body, "kvarto:kv_blocks_stale_seconds") == "0.0"; }));
}

// The log still has its line of numbers after another part of the look has thrown.
TEST_F(ServerLife, ALookThatFailsIsNotTheLast) {
  FakeEngine fake;
  ServeOptions options;
  options.http.port = 0;
  options.served_model_names = {"tiny"};
  options.log_stats_interval_s = 0.1;
  options.sse_keep_alive_s = 1000;  // looks five times a second
  auto listening = Server::listen(std::move(options));
  ASSERT_TRUE(listening) << listening.error().message;
  server_ = std::move(*listening);
  std::atomic<bool> told = false;
  server_->on_failure([&] {
    told = true;
    throw std::runtime_error("planted");
  });
  fake.model->before_forward = [](const Batch&) { throw CheckFailure("planted"); };
  fake.ledger = std::make_shared<Ledger>(1);
  serve(std::move(fake.engine));
  EXPECT_EQ(ask(completion(R"({"prompt": [1, 2, 3], "max_tokens": 1})")).status, 500);
  ASSERT_TRUE(eventually([&] { return told.load(); }));
  set_log_level(LogLevel::debug);  // of a quiet server the line is shown to nobody else
  EXPECT_TRUE(eventually([&] {
    testing::internal::CaptureStderr();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return testing::internal::GetCapturedStderr().find("throughput") != std::string::npos;
  }));
  set_log_level(LogLevel::warning);
  server_.reset();  // before what the engine uses
}

constexpr const char* kHello = R"({"answers": [{"pieces": ["Hello"]}]})";

TEST_F(ServerLife, ThePrefixOfAProxyEndsAtASlash) {
  for (const char* given : {"/llm", "llm/", "//llm//"}) {
    ServeOptions options;
    options.root_path = given;
    options.allowed_hosts = {"h"};
    listen(options);
    serve(scripted_engine(kHello, {}));
    for (const char* path : {"/llm/v1/models", "/v1/models", "/llm/", "/llm/version/"}) {
      EXPECT_EQ(get(path).status, 200) << given << " " << path;
    }
    for (const char* path : {"/llmv1/models", "/llm2/v1/models", "/llm/llm/v1/models"}) {
      EXPECT_EQ(get(path).status, 404) << given << " " << path;
    }
    const Answer page = get("/llm");
    EXPECT_EQ(page.status, 307) << given;
    EXPECT_EQ(page.value("Location"), "/llm/");
  }
  for (const char* given : {"/", "//", ""}) {
    ServeOptions options;
    options.root_path = given;
    listen(options);
    serve(scripted_engine(kHello, {}));
    EXPECT_EQ(get("/v1/models").status, 200) << given;
    EXPECT_EQ(get("//v1/models").status, 404) << given;
  }
}

// Without keys a page that let its name point here would be of the same origin as the API.
TEST_F(ServerLife, PagesThatReboundTheirNameAreRefused) {
  const auto status = [&](const std::string& path, const std::string& headers, const std::string& body = "") {
    return ask((body.empty() ? "GET " : "POST ") + path + " HTTP/1.1\r\n" + headers +
               "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body)
        .status;
  };
  const std::string rebound = "Host: evil.example:8000\r\n", own = "Host: localhost:8000\r\n",
                    page = "Origin: http://evil.example:8000\r\n", body = R"({"prompt": "x"})";
  listen({});
  serve(scripted_engine(kHello, {}));
  EXPECT_EQ(status("/v1/completions", rebound + page, body), 403);
  EXPECT_EQ(status("/metrics", rebound + "Sec-Fetch-Site: same-origin\r\n"), 403);
  EXPECT_EQ(status("/v1/models", rebound + "User-Agent: Mozilla/5.0\r\n"), 403);
  EXPECT_EQ(status("/v1/completions", rebound, body), 200) << "no browser";
  EXPECT_EQ(status("/v1/models", rebound + "User-Agent: node\r\nSec-Fetch-Mode: cors\r\n"), 200) << "no browser";
  EXPECT_EQ(status("/v1/completions", own + "Origin: http://localhost:8000\r\n", body), 200);
  EXPECT_EQ(status("/health", rebound + page), 200);

  ServeOptions open;
  open.cors.origins = {"http://evil.example:8000"};
  listen(open);
  serve(scripted_engine(kHello, {}));
  EXPECT_EQ(status("/v1/completions", rebound + page, body), 200) << "the operator let it";
  EXPECT_EQ(status("/metrics", rebound + "Sec-Fetch-Site: same-origin\r\n"), 403);
  ServeOptions named;
  named.allowed_hosts = {"evil.example"};
  listen(named);
  serve(scripted_engine(kHello, {}));
  EXPECT_EQ(status("/v1/completions", rebound + page, body), 200);
  ServeOptions keyed;
  keyed.api_keys = {"k"};
  listen(keyed);
  serve(scripted_engine(kHello, {}));
  EXPECT_EQ(status("/v1/completions", rebound + page + "Authorization: Bearer k\r\n", body), 200);
}

// A step fails and there is no memory for a new cache: whoever watches still gets answers.
TEST_F(ServerLife, AnEngineWithoutACacheIsToldOf) {
  EngineOptions engine_options;
  engine_options.record_kv_events = true;
  FakeEngine fake({.options = engine_options});
  ServeOptions options;
  options.kv_events.enabled = true;
  options.kv_events.publisher = "zmq";
  options.kv_events.endpoint = "tcp://127.0.0.1:*";
  options.sse_keep_alive_s = 1000;
  options.dev_mode = true;
  options.allowed_hosts = {"*"};
  options.chat_template = "{{ messages[0]['content'] }}";
  listen(options);
  fake.model->before_forward = [](const Batch&) { throw CheckFailure("planted"); };
  fake.ledger = std::make_shared<Ledger>(1);
  serve(std::move(fake.engine), engine_options);
  EXPECT_EQ(ask(completion(R"({"prompt": [1, 2, 3], "max_tokens": 1})")).status, 500);
  Answer health;
  ASSERT_TRUE(eventually([&] {
    health = get("/health");
    return health.status == 503;
  }));
  EXPECT_NE(health.body.find("could not be made again"), std::string::npos) << health.body;
  const Answer metrics = get("/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(value_of(metrics.body, "kvarto:internal_errors_total"), "1.0");
  EXPECT_EQ(ask(http_testing::post("/reset_prefix_cache", "")).status, 200);
  EXPECT_EQ(get("/dashboard/state").status, 200);
  EXPECT_GE(ask(completion(R"({"prompt": [1, 2, 3], "max_tokens": 1})")).status, 500);
  server_.reset();  // before what the engine uses
}

}  // namespace
}  // namespace kvarto
