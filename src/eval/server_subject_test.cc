// Against stubs on this machine: one that echoes as Kvarto and vLLM do, one that does not, one that hangs up.
#include "eval/server_subject.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "http/server.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kModels[] = R"({"data": [{"id": "stub"}]})";

// Words with the space in front of them, and line ends.
std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) {
    const bool starts = pieces.empty() || c == ' ' || c == '\n' || pieces.back() == "\n";
    if (starts) pieces.emplace_back();
    pieces.back() += c;
  }
  return pieces;
}

// An eighth of a nat for each character.
double logprob_of(const std::string& piece) { return -static_cast<double>(piece.size()) / 8; }

struct Rules {
  bool tokenizes = true;
  bool echoes = true;
  int refuses_echo = 0;           // status of each request with echo
  int refuses_no_token = 0;       // status of each request for no token
  int busy = 0;                   // so many generating requests get 503
  std::string retry_after = "0";  // of these
  std::string body;               // of every completion, when it is not empty
  size_t hold = 0;                // completions wait until so many are there
};

class Stub {
 public:
  explicit Stub(Rules rules = {}) : rules_(std::move(rules)) {
    HttpServerOptions options;
    options.port = 0;
    Result<std::unique_ptr<HttpServer>> started = HttpServer::start(
        options, [this](std::shared_ptr<HttpExchange> exchange) { handle(std::move(exchange)); },
        [](int status, std::string_view message) {
          return ServerReply{status, {}, std::string(message)};
        });
    EXPECT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
    url_ = "http://127.0.0.1:" + std::to_string(server_->port());
  }

  std::unique_ptr<Subject> subject(ServerOptions options = {}) {
    options.url = url_;
    options.pause_s = 0.01;
    Result<FoundServer> found = find_server(options);
    EXPECT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->model, "stub");
    return std::move(found->subject);
  }
  const std::string& url() const { return url_; }
  void stop() { server_->stop(); }

  // Bodies of all requests to a path.
  std::vector<Json> asked(const std::string& path) {
    const std::lock_guard lock(mutex_);
    std::vector<Json> out;
    for (const auto& [to, body] : asked_) {
      if (to == path) out.push_back(body);
    }
    return out;
  }
  size_t waiting() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

 private:
  void handle(std::shared_ptr<HttpExchange> exchange) {  // front thread
    const std::lock_guard lock(mutex_);
    const std::string& path = exchange->request().path;
    if (path == "/v1/models") return exchange->reply({200, {}, kModels});
    const Json body = Json::parse(exchange->request().body);
    asked_.emplace_back(path, body);
    if (path == "/tokenize") return exchange->reply(tokenize(body));
    if (rules_.busy > 0) {
      --rules_.busy;
      return exchange->reply({503, {{"Retry-After", rules_.retry_after}}, R"({"error": {"message": "too busy"}})"});
    }
    if (rules_.hold > 0) {
      held_.emplace_back(std::move(exchange), complete(body));
      if (held_.size() < rules_.hold) return;
      for (auto& [waiting, reply] : held_) waiting->reply(std::move(reply));
      return held_.clear();
    }
    exchange->reply(complete(body));
  }

  ServerReply tokenize(const Json& body) const {
    if (!rules_.tokenizes) return {404, {}, R"({"detail": "Not Found"})"};
    Json reply = Json::object();
    reply["tokens"] = pieces_of(body["content"].get<std::string>());
    return {200, {}, reply.dump()};
  }

  ServerReply complete(const Json& body) const {
    const bool echo = body.contains("echo") && body["echo"].get<bool>();
    if (echo && rules_.refuses_echo != 0) return {rules_.refuses_echo, {}, R"({"error": "no echo here"})"};
    if (body["max_tokens"] == 0 && rules_.refuses_no_token != 0) return {rules_.refuses_no_token, {}, "at least 1"};
    if (!rules_.body.empty()) return {200, {}, rules_.body};
    Json choice = Json::object();
    if (body.contains("messages")) {
      choice["message"]["content"] = "to: " + body["messages"].back()["content"].get<std::string>();
    } else if (echo && rules_.echoes) {
      add_echo(choice, body);
    } else {
      choice["text"] = " " + body["prompt"].get<std::string>() + "!\nand more";
    }
    Json reply = Json::object();
    reply["choices"].push_back(std::move(choice));
    if (body.contains("prompt")) {
      reply["usage"]["prompt_tokens"] = 1 + pieces_of(body["prompt"].get<std::string>()).size();
    }
    return {200, {}, reply.dump()};
  }

  static void add_echo(Json& choice, const Json& body) {
    const std::string prompt = body["prompt"].get<std::string>();
    std::vector<std::string> pieces = pieces_of(prompt);
    const bool generates = body["max_tokens"] == 1;
    if (generates) pieces.emplace_back(" more");
    choice["text"] = prompt + (generates ? " more" : "");
    Json& logprobs = choice["logprobs"];
    size_t offset = 0;
    const auto add = [&](const std::string& piece, Json logprob, Json top) {
      logprobs["tokens"].push_back(piece);
      logprobs["text_offset"].push_back(offset);
      logprobs["token_logprobs"].push_back(std::move(logprob));
      logprobs["top_logprobs"].push_back(std::move(top));
      offset += piece.size();
    };
    add("<s>", nullptr, nullptr);  // vLLM counts its characters
    for (const std::string& piece : pieces) {
      Json top = Json::object();
      top[piece] = logprob_of(piece);
      if (piece.find('9') != std::string::npos) top[" other"] = -0.01;
      add(piece, logprob_of(piece), std::move(top));
    }
  }

  std::mutex mutex_;  // guards all but the server
  Rules rules_;
  std::vector<std::pair<std::string, Json>> asked_;
  std::vector<std::pair<std::shared_ptr<HttpExchange>, ServerReply>> held_;
  std::string url_;
  std::unique_ptr<HttpServer> server_;
};

Task task_of(std::string id, std::string prompt, std::string answer = "") {
  Task task;
  task.family = "f";
  task.id = std::move(id);
  task.prompt = std::move(prompt);
  task.answer = std::move(answer);
  task.max_tokens = 7;
  return task;
}

std::string error_of(Subject& subject, const Task& task) {
  const Result<std::optional<Likelihood>> out = subject.likelihood(task, false);
  return out ? std::string() : out.error().message;
}

// What each task got, in the order of the tasks.
Result<std::vector<std::string>> written(Subject& subject, const std::vector<Task>& tasks) {
  std::vector<const Task*> asked;
  for (const Task& task : tasks) asked.push_back(&task);
  std::vector<std::string> texts(tasks.size());
  const std::thread::id here = std::this_thread::get_id();
  size_t done = 0;
  RETURN_IF_ERROR(subject.generate(asked, [&](size_t index, std::string text) -> Status {
    EXPECT_EQ(std::this_thread::get_id(), here);
    EXPECT_EQ(texts.at(index), "");
    texts.at(index) = std::move(text);
    ++done;
    return {};
  }));
  EXPECT_EQ(done, tasks.size());
  return texts;
}

std::string failure(Subject& subject, const std::vector<Task>& tasks) {
  const auto out = written(subject, tasks);
  return out ? std::string() : out.error().message;
}

// --- likelihoods

TEST(ServerSubject, LikelihoodsOfAnEcho) {
  Stub stub;
  const auto subject = stub.subject();
  Task task = task_of("t", "the key is", " 4821\n");
  task.floor_prompt = "what is";
  const auto out = subject->likelihood(task, false);
  ASSERT_TRUE(out && *out);
  EXPECT_DOUBLE_EQ((*out)->nll, 6.0 / 8);
  EXPECT_EQ((*out)->tokens, 2u);
  EXPECT_TRUE((*out)->greedy);
  const auto floor = subject->likelihood(task, true);
  ASSERT_TRUE(floor && *floor);
  EXPECT_DOUBLE_EQ((*floor)->nll, 6.0 / 8);
  // " 4821" is one token, of which the prompt has a part.
  const auto spanning = subject->likelihood(task_of("u", "the key is ", "4829\n"), false);
  ASSERT_TRUE(spanning && *spanning);
  EXPECT_DOUBLE_EQ((*spanning)->nll, 6.0 / 8);
  EXPECT_FALSE((*spanning)->greedy);  // see the 9

  const std::vector<Json> asked = stub.asked("/v1/completions");
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0], Json::parse(R"({"model": "stub", "prompt": "the key is 4821\n", "echo": true, "logprobs": 1,
                                      "max_tokens": 0, "temperature": 0, "stream": false})"));
  EXPECT_EQ(asked[1]["prompt"], "what is 4821\n");
}

TEST(ServerSubject, NothingToTell) {
  Stub stub;
  const auto subject = stub.subject();
  Task chat = task_of("chat", "", "yes");
  chat.messages = R"([{"role": "user", "content": "hi"}])";
  for (const Task& task : {task_of("open", "the key is"), chat}) {
    const auto out = subject->likelihood(task, false);
    ASSERT_TRUE(out);
    EXPECT_FALSE(*out);
  }
  const auto no_floor = subject->likelihood(task_of("t", "the key is", " 1"), true);
  ASSERT_TRUE(no_floor);
  EXPECT_FALSE(*no_floor);
  EXPECT_TRUE(stub.asked("/v1/completions").empty());
}

TEST(ServerSubject, AServerThatMustGenerateOneToken) {
  Rules rules;
  rules.refuses_no_token = 400;
  Stub stub(rules);
  const auto subject = stub.subject();
  for (int i = 0; i < 2; ++i) {
    const auto out = subject->likelihood(task_of("t", "the key is", " 4821\n"), false);
    ASSERT_TRUE(out && *out);
    EXPECT_DOUBLE_EQ((*out)->nll, 6.0 / 8);
    EXPECT_EQ((*out)->tokens, 2u);
  }
  EXPECT_EQ(stub.asked("/v1/completions").size(), 3u);  // refused once
}

TEST(ServerSubject, AServerWithoutEchoIsAskedOnce) {
  std::vector<std::pair<Rules, size_t>> cases(4);  // and requests
  cases[0].first.echoes = false;                   // as llama-server
  cases[0].second = 1;
  for (size_t i = 1; i < 4; ++i) {
    cases[i].first.refuses_echo = std::vector<int>{400, 404, 501}[i - 1];
    cases[i].second = 2;  // none and one token
  }
  for (const auto& [rules, requests] : cases) {
    Stub stub(rules);
    const auto subject = stub.subject();
    for (int i = 0; i < 3; ++i) {
      const auto out = subject->likelihood(task_of("t", "the key is", " 4821\n"), false);
      ASSERT_TRUE(out) << out.error().message;
      EXPECT_FALSE(*out);
    }
    EXPECT_EQ(stub.asked("/v1/completions").size(), requests);
  }
}

TEST(ServerSubject, OtherRefusalsAreErrors) {
  Rules rules;
  rules.refuses_echo = 500;
  Stub stub(rules);
  EXPECT_EQ(error_of(*stub.subject(), task_of("t 1", "a", " b")),
            "task t 1: " + stub.url() + "/v1/completions answers 500: no echo here");
}

TEST(ServerSubject, GarbageIsAnErrorThatNamesTheTask) {
  for (const auto& [body, words] : std::vector<std::pair<std::string, std::string>>{
           {"<html>", "not JSON"},
           {R"({"choices": 5})", "choices is 5"},
           {R"({"choices": [{"text": "a b", "logprobs": {"tokens": {}}}]})", "logprobs.tokens is {}"},
           {R"({"choices": [{"text": "a", "text": "b"}]})", "comes twice"}}) {
    Rules rules;
    rules.body = body;
    Stub stub(rules);
    const auto subject = stub.subject();
    const std::string message = error_of(*subject, task_of("t-1", "a", " b"));
    EXPECT_NE(message.find("task t-1: " + stub.url() + "/v1/completions: the reply"), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  Rules rules;
  rules.body = R"({"choices": [{"text": 7}]})";
  Stub stub(rules);
  EXPECT_EQ(failure(*stub.subject(), {task_of("t-1", "a")}),
            "task t-1: " + stub.url() + "/v1/completions: the reply's choices[0].text is 7, not a string");
}

// --- counting

TEST(ServerSubject, CountsTokens) {
  Stub stub;
  EXPECT_EQ(stub.subject()->count_tokens("the key is\n"), 4u);
  EXPECT_TRUE(stub.asked("/v1/completions").empty());
  Rules rules;
  rules.tokenizes = false;
  Stub plain(rules);
  const auto subject = plain.subject();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(subject->count_tokens("the key is\n"), 5u);  // and the start token
  EXPECT_EQ(plain.asked("/tokenize").size(), 1u);
  EXPECT_EQ(plain.asked("/v1/completions").back()["max_tokens"], 1);
}

// --- generating

TEST(ServerSubject, WritesAndCutsAtStops) {
  Stub stub;
  std::vector<Task> tasks;
  for (int i = 0; i < 20; ++i) tasks.push_back(task_of("t" + std::to_string(i), "say " + std::to_string(i)));
  tasks[3].stop = {"\n", "END"};
  tasks[4].prompt.clear();
  tasks[4].messages = R"([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}])";
  const auto texts = written(*stub.subject(), tasks);
  ASSERT_TRUE(texts) << texts.error().message;
  EXPECT_EQ((*texts)[0], " say 0!\nand more");
  EXPECT_EQ((*texts)[3], " say 3!");
  EXPECT_EQ((*texts)[4], "to: hi");
  EXPECT_EQ((*texts)[19], " say 19!\nand more");

  const std::vector<Json> chats = stub.asked("/v1/chat/completions");
  ASSERT_EQ(chats.size(), 1u);
  EXPECT_EQ(chats[0], Json::parse(R"({"model": "stub", "stream": false, "temperature": 0, "max_tokens": 7,
      "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]})"));
  for (const Json& body : stub.asked("/v1/completions")) {
    EXPECT_EQ(body["temperature"], 0);
    EXPECT_EQ(body.contains("stop"), body["prompt"] == "say 3");
    if (body.contains("stop")) {
      EXPECT_EQ(body["stop"], Json::parse(R"(["\n", "END"])"));
    }
  }
  EXPECT_EQ(*written(*stub.subject(), {}), std::vector<std::string>());
}

TEST(ServerSubject, KeepsRequestsOnTheirWay) {
  Rules rules;
  rules.hold = 3;  // answered when three are there
  Stub stub(rules);
  const auto subject = stub.subject({.url = "", .timeout_s = 60, .concurrency = 3});
  const auto texts = written(*subject, {task_of("a", "1"), task_of("b", "2"), task_of("c", "3")});
  ASSERT_TRUE(texts) << texts.error().message;
  EXPECT_EQ(*texts, (std::vector<std::string>{" 1!\nand more", " 2!\nand more", " 3!\nand more"}));
}

TEST(ServerSubject, WhatTheCallerFailsWithEndsTheCall) {
  Stub stub;
  const std::vector<Task> tasks = {task_of("a", "1"), task_of("b", "2"), task_of("c", "3"), task_of("d", "4")};
  std::vector<const Task*> asked;
  for (const Task& task : tasks) asked.push_back(&task);
  int calls = 0;
  const Status status = stub.subject()->generate(asked, [&](size_t, std::string) -> Status {
    return ++calls == 2 ? Status(fail(ErrorCode::io, "disk full")) : Status();
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "disk full");
  EXPECT_EQ(calls, 2);
}

TEST(ServerSubject, ABusyServerIsWaitedFor) {
  Rules rules;
  rules.busy = 5;
  Stub stub(rules);
  const auto texts = written(*stub.subject({.url = "", .concurrency = 2}), {task_of("a", "1"), task_of("b", "2")});
  ASSERT_TRUE(texts) << texts.error().message;
  EXPECT_EQ((*texts)[1], " 2!\nand more");
  EXPECT_EQ(stub.asked("/v1/completions").size(), 7u);
}

TEST(ServerSubject, AWaitThatIsTooLongIsAnError) {
  Rules rules;
  rules.busy = 1'000'000;
  rules.retry_after = "1000";
  Stub stub(rules);
  EXPECT_EQ(failure(*stub.subject({.url = "", .timeout_s = 20}), {task_of("t", "1")}),
            "task t: " + stub.url() + "/v1/completions answers 503: too busy; it stays busy, try later");
}

TEST(ServerSubject, CancellingEndsAWait) {
  Rules rules;
  rules.hold = 100;
  Stub stub(rules);
  const auto subject = stub.subject({.url = "", .timeout_s = 60, .cancelled = [&] { return stub.waiting() > 0; }});
  const auto texts = written(*subject, {task_of("a", "1"), task_of("b", "2")});
  ASSERT_FALSE(texts);
  EXPECT_EQ(texts.error().code, ErrorCode::cancelled);
  const auto likelihood = subject->likelihood(task_of("a", "1", " 2"), false);
  ASSERT_FALSE(likelihood);
  EXPECT_EQ(likelihood.error().code, ErrorCode::cancelled);
}

// --- connections

TEST(ServerSubject, ADeadServerIsAnErrorOfOneLine) {
  Stub stub;
  const auto subject = stub.subject();
  stub.stop();
  const std::string generating = failure(*subject, {task_of("t-1", "a")});
  const std::string scoring = error_of(*subject, task_of("t-1", "a", "b"));
  for (const std::string& message : {generating, scoring}) {
    EXPECT_TRUE(message.starts_with("task t-1: " + stub.url() + "/v1/completions: ")) << message;
    EXPECT_NE(message.find("is the server still running?"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  const Result<FoundServer> found = find_server({.url = stub.url()});
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("is the server running"), std::string::npos) << found.error().message;
}

// One connection after the other gets the next answer; an empty one is hung up on when its request is there.
class HangingUp {
 public:
  explicit HangingUp(std::vector<std::string> answers)
      : answers_(std::move(answers)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HangingUp() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void serve() const {
    for (const std::string& answer : answers_) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      std::string request;
      char buffer[4096];
      // The bodies of these tests end in '}'; a GET has none.
      while (!request.ends_with('}') && !(request.starts_with("GET") && request.ends_with("\r\n\r\n"))) {
        const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
        if (n <= 0) break;
        request.append(buffer, static_cast<size_t>(n));
      }
      if (!answer.empty()) {
        const std::string reply =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + std::to_string(answer.size()) + "\r\n\r\n" +
            answer;
        ::send(client, reply.data(), reply.size(), MSG_NOSIGNAL);
      }
      ::close(client);
    }
  }

  const std::vector<std::string> answers_;
  const int listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST(ServerSubject, AConnectionThatBreaksIsTriedAgain) {
  HangingUp stub({kModels, "", "", "", R"({"choices": [{"text": "at last"}]})"});
  const Result<FoundServer> found = find_server({.url = stub.url(), .concurrency = 1, .pause_s = 0.01});
  ASSERT_TRUE(found) << found.error().message;
  const auto texts = written(*found->subject, {task_of("t", "a")});
  ASSERT_TRUE(texts) << texts.error().message;
  EXPECT_EQ((*texts)[0], "at last");
}

TEST(ServerSubject, ButNotForEver) {
  HangingUp stub({kModels, "", "", "", "", R"({"choices": [{"text": "too late"}]})"});
  const Result<FoundServer> found = find_server({.url = stub.url(), .concurrency = 1, .pause_s = 0.01});
  ASSERT_TRUE(found) << found.error().message;
  const std::string message = failure(*found->subject, {task_of("t", "a")});
  EXPECT_NE(message.find("closed early"), std::string::npos) << message;
}

}  // namespace
}  // namespace kvarto
