// Against a stub on this machine that echoes as Kvarto and vLLM do, or does not. Connections that break are in
// server_subject_broken_test.cc.
#include "eval/server_subject.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "http/testing.h"

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
  bool gives_logprobs = true;     // with an echo
  bool has_start_token = true;    // without one, the first token of the text has no log-probability
  int refuses_echo = 0;           // status of each request with echo
  int refuses_no_token = 0;       // status of each request for no token
  int busy = 0;                   // so many generating requests get 503
  std::string retry_after = "0";  // of these
  std::string body = {};          // of every completion, when it is not empty
  std::string refuses = {};       // prompts that begin so get 400
  std::string redirect = {};      // where all requests are sent
  size_t hold = 0;                // completions wait until so many are there
};

class Stub {
 public:
  explicit Stub(Rules rules = {}, const TlsOptions& tls = {}) : rules_(std::move(rules)) {
    HttpServerOptions options;
    options.port = 0;
    options.tls = tls;
    Result<std::unique_ptr<HttpServer>> started = HttpServer::start(
        options, [this](std::shared_ptr<HttpExchange> exchange) { handle(std::move(exchange)); },
        [](int status, std::string_view message) {
          return ServerReply{status, {}, std::string(message)};
        });
    EXPECT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
    url_ = server_->address();
  }

  FoundServer find(ServerOptions options = {}) {
    options.url = url_;
    options.pause_s = 0.01;
    Result<FoundServer> found = find_server(options);
    EXPECT_TRUE(found) << found.error().message;
    return found ? std::move(*found) : FoundServer();
  }
  // `then`: what holds for tasks. asked() begins with theirs.
  std::unique_ptr<Subject> subject(const std::function<void(Rules& rules)>& then = {}, ServerOptions options = {}) {
    FoundServer found = find(std::move(options));
    EXPECT_EQ(found.model, "stub");
    EXPECT_EQ(found.url, url_ + "/");
    const std::lock_guard lock(mutex_);
    asked_.clear();
    if (then) then(rules_);
    return std::move(found.subject);
  }
  std::string error() const {
    const Result<FoundServer> found = find_server({.url = url_, .pause_s = 0.01});
    return found ? std::string() : found.error().message;
  }
  void change(const std::function<void(Rules& rules)>& how) {
    const std::lock_guard lock(mutex_);
    how(rules_);
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
    if (!rules_.redirect.empty()) return exchange->reply({307, {{"Location", rules_.redirect}}, ""});
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
    if (!rules_.refuses.empty() && body.value("prompt", std::string()).starts_with(rules_.refuses)) {
      return {400, {}, R"({"error": {"message": "too long"}})"};
    }
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

  void add_echo(Json& choice, const Json& body) const {
    const std::string prompt = body["prompt"].get<std::string>();
    std::vector<std::string> pieces = pieces_of(prompt);
    const bool generates = body["max_tokens"] == 1;
    if (generates) pieces.emplace_back(" more");
    choice["text"] = prompt + (generates ? " more" : "");
    if (!rules_.gives_logprobs) return;
    Json& logprobs = choice["logprobs"];
    size_t offset = 0;
    const auto add = [&](const std::string& piece, Json logprob, Json top) {
      logprobs["tokens"].push_back(piece);
      logprobs["text_offset"].push_back(offset);
      logprobs["token_logprobs"].push_back(std::move(logprob));
      logprobs["top_logprobs"].push_back(std::move(top));
      offset += piece.size();
    };
    if (rules_.has_start_token) add("<s>", nullptr, nullptr);
    for (const std::string& piece : pieces) {
      if (offset == 0) {
        add(piece, nullptr, nullptr);
        continue;
      }
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

// What each task got, in the order of the tasks; why it was refused goes to `refused`, when that is there.
Result<std::vector<std::string>> written(Subject& subject, const std::vector<Task>& tasks,
                                         std::map<size_t, std::string>* refused = nullptr) {
  std::vector<const Task*> asked;
  for (const Task& task : tasks) asked.push_back(&task);
  std::vector<std::string> texts(tasks.size());
  const std::thread::id here = std::this_thread::get_id();
  size_t done = 0;
  RETURN_IF_ERROR(subject.generate(asked, [&](size_t index, Result<std::string> text) -> Status {
    EXPECT_EQ(std::this_thread::get_id(), here);
    EXPECT_EQ(texts.at(index), "");
    ++done;
    if (text) {
      texts.at(index) = *std::move(text);
      return {};
    }
    EXPECT_EQ(text.error().code, ErrorCode::invalid_argument);
    if (refused == nullptr) return tl::unexpected<Error>(text.error());
    EXPECT_TRUE(refused->emplace(index, text.error().message).second);
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
  const FoundServer found = stub.find();
  EXPECT_TRUE(found.echoes);
  for (int i = 0; i < 2; ++i) {
    const auto out = found.subject->likelihood(task_of("t", "the key is", " 4821\n"), false);
    ASSERT_TRUE(out && *out);
    EXPECT_DOUBLE_EQ((*out)->nll, 6.0 / 8);
    EXPECT_EQ((*out)->tokens, 2u);
  }
  EXPECT_EQ(stub.asked("/v1/completions").size(), 4u);  // refused once, when it was found
}

TEST(ServerSubject, AFirstTokenOfTheTextWithoutALogProbability) {
  Rules rules;
  rules.has_start_token = false;
  Stub stub(rules);
  const FoundServer found = stub.find();
  EXPECT_TRUE(found.echoes);
  const auto out = found.subject->likelihood(task_of("t", "the key is", " 4821\n"), false);
  ASSERT_TRUE(out && *out);
  EXPECT_DOUBLE_EQ((*out)->nll, 6.0 / 8);
  const auto all = found.subject->likelihood(task_of("t", "4", "821"), false);  // one token, and the first
  ASSERT_TRUE(all);
  EXPECT_FALSE(*all);
}

TEST(ServerSubject, WhetherAServerEchoesIsAskedOnceWhenItIsFound) {
  std::vector<std::pair<Rules, size_t>> cases(6);  // and requests
  cases[0].first.echoes = false;                   // as llama-server
  cases[0].second = 1;
  cases[1].first.gives_logprobs = false;
  cases[1].second = 1;
  cases[2].first.body = R"({"error": {"message": "echo is not allowed"}})";
  cases[2].second = 2;  // none and one token
  for (size_t i = 3; i < 6; ++i) {
    cases[i].first.refuses_echo = std::vector<int>{400, 404, 501}[i - 3];
    cases[i].second = 2;
  }
  for (const auto& [rules, requests] : cases) {
    Stub stub(rules);
    const FoundServer found = stub.find();
    EXPECT_FALSE(found.echoes);
    EXPECT_EQ(stub.asked("/v1/completions").size(), requests);
    for (int i = 0; i < 3; ++i) {
      const auto out = found.subject->likelihood(task_of("t", "the key is", " 4821\n"), false);
      ASSERT_TRUE(out) << out.error().message;
      EXPECT_FALSE(*out);
    }
    EXPECT_EQ(stub.asked("/v1/completions").size(), requests);
  }
}

TEST(ServerSubject, AServerInTroubleIsNotTakenForOneThatDoesNotEcho) {
  Rules rules;
  rules.refuses_echo = 500;
  const std::string message = Stub(rules).error();
  EXPECT_TRUE(message.starts_with("asking for the log-probabilities of a prompt: http://")) << message;
  EXPECT_TRUE(message.ends_with("/v1/completions answers 500: no echo here")) << message;
  rules = {};
  rules.busy = 3;
  EXPECT_TRUE(Stub(rules).find().echoes);
}

TEST(ServerSubject, WhatOneTaskMeetsSaysNothingOfTheOthers) {
  Stub stub;
  const auto subject = stub.subject();
  const Task task = task_of("t 1", "the key is", " 4821\n");
  stub.change([](Rules& rules) { rules.echoes = false; });
  const auto nothing = subject->likelihood(task, false);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing);
  stub.change([](Rules& rules) { rules = {.refuses = "the"}; });
  const auto refused = subject->likelihood(task, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused.error().message, "task t 1: " + stub.url() + "/v1/completions answers 400: too long");
  stub.change([](Rules& rules) { rules = {.body = R"({"error": {"message": "too long"}})"}; });
  const auto disguised = subject->likelihood(task, false);
  ASSERT_FALSE(disguised);
  EXPECT_EQ(disguised.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(disguised.error().message, "task t 1: " + stub.url() + "/v1/completions: the reply is an error: too long");
  for (const int status : {401, 404, 500}) {
    stub.change([&](Rules& rules) { rules = {.refuses_echo = status}; });
    const auto ended = subject->likelihood(task, false);
    ASSERT_FALSE(ended);
    EXPECT_NE(ended.error().code, ErrorCode::invalid_argument) << status;
  }
  stub.change([](Rules& rules) { rules = {}; });
  const auto again = subject->likelihood(task, false);
  ASSERT_TRUE(again && *again);
  EXPECT_DOUBLE_EQ((*again)->nll, 6.0 / 8);
}

TEST(ServerSubject, GarbageIsAnErrorThatNamesTheTask) {
  for (const auto& [body, words] : std::vector<std::pair<std::string, std::string>>{
           {"<html>", "not JSON"},
           {R"({"choices": 5})", "choices is 5"},
           {R"({"choices": [{"text": "a b", "logprobs": {"tokens": {}}}]})", "logprobs.tokens is {}"},
           {R"({"choices": [{"text": "a", "text": "b"}]})", "comes twice"}}) {
    Stub stub;
    const auto subject = stub.subject([&reply = body](Rules& rules) { rules.body = reply; });
    const std::string message = error_of(*subject, task_of("t-1", "a", " b"));
    EXPECT_NE(message.find("task t-1: " + stub.url() + "/v1/completions: the reply"), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  const auto odd = [](Rules& rules) { rules.body = R"({"choices": [{"text": 7}]})"; };
  const std::string words = "/v1/completions: the reply's choices[0].text is 7, not a string";
  Stub stub;
  EXPECT_EQ(failure(*stub.subject(odd), {task_of("t-1", "a")}), "task t-1: " + stub.url() + words);
  EXPECT_EQ(stub.error(), "asking for the log-probabilities of a prompt: " + stub.url() + words);
}

// --- counting

TEST(ServerSubject, CountsTokens) {
  Stub stub;
  EXPECT_EQ(stub.find().count_tokens("the key is\n"), 4u);
  EXPECT_EQ(stub.asked("/v1/completions").size(), 1u);  // whether it echoes
  Rules rules;
  rules.tokenizes = false;
  Stub plain(rules);
  const auto count = plain.find().count_tokens;                      // the subject is gone
  for (int i = 0; i < 3; ++i) EXPECT_EQ(count("the key is\n"), 5u);  // and the start token
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

TEST(ServerSubject, ARefusedTaskDoesNotEndTheOthers) {
  Stub stub;
  const auto subject = stub.subject([](Rules& rules) { rules.refuses = "say 7"; });
  std::vector<Task> tasks;
  for (int i = 0; i < 20; ++i) tasks.push_back(task_of("t" + std::to_string(i), "say " + std::to_string(i)));
  std::map<size_t, std::string> refused;
  const auto texts = written(*subject, tasks, &refused);
  ASSERT_TRUE(texts) << texts.error().message;
  EXPECT_EQ((*texts)[19], " say 19!\nand more");
  EXPECT_EQ(refused,
            (std::map<size_t, std::string>{{7, "task t7: " + stub.url() + "/v1/completions answers 400: too long"}}));

  stub.change([](Rules& rules) { rules = {.body = R"({"error": "no"})"}; });
  refused.clear();
  ASSERT_TRUE(written(*subject, {tasks[3]}, &refused));
  EXPECT_EQ(refused[0], "task t3: " + stub.url() + "/v1/completions: the reply is an error: no");
}

TEST(ServerSubject, KeepsRequestsOnTheirWay) {
  Stub stub;  // answers when three are there
  const auto subject =
      stub.subject([](Rules& rules) { rules.hold = 3; }, {.url = "", .timeout_s = 60, .concurrency = 3});
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
  const Status status = stub.subject()->generate(asked, [&](size_t, const Result<std::string>&) -> Status {
    return ++calls == 2 ? Status(fail(ErrorCode::io, "disk full")) : Status();
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "disk full");
  EXPECT_EQ(calls, 2);
}

TEST(ServerSubject, ABusyServerIsWaitedFor) {
  Stub stub;
  const auto subject = stub.subject([](Rules& rules) { rules.busy = 5; }, {.url = "", .concurrency = 2});
  const auto texts = written(*subject, {task_of("a", "1"), task_of("b", "2")});
  ASSERT_TRUE(texts) << texts.error().message;
  EXPECT_EQ((*texts)[1], " 2!\nand more");
  EXPECT_EQ(stub.asked("/v1/completions").size(), 7u);
}

TEST(ServerSubject, AWaitThatIsTooLongIsAnErrorAtOnce) {
  for (const auto& [retry_after, said] : std::vector<std::pair<std::string, std::string>>{
           {"1000", " (wait 1000 s, it says)"}, {"1e9", " (wait 1000000000 s, it says)"}}) {
    Stub stub;
    const auto busy = [&value = retry_after](Rules& rules) {
      rules.busy = 1'000'000;
      rules.retry_after = value;
    };
    EXPECT_EQ(failure(*stub.subject(busy, {.url = "", .timeout_s = 60}), {task_of("t", "1")}),
              "task t: " + stub.url() + "/v1/completions answers 503: too busy; it stays busy" + said + ", try later");
    EXPECT_EQ(stub.asked("/v1/completions").size(), 1u);
  }
  Stub stub;
  const auto busy = [](Rules& rules) { rules.busy = 1'000'000; };
  EXPECT_EQ(failure(*stub.subject(busy, {.url = "", .timeout_s = 1.5}), {task_of("t", "1")}),
            "task t: " + stub.url() + "/v1/completions answers 503: too busy; it stays busy, try later");
}

TEST(ServerSubject, CancellingEndsAWait) {
  Stub stub;
  const auto subject = stub.subject([](Rules& rules) { rules.hold = 100; },
                                    {.url = "", .timeout_s = 60, .cancelled = [&] { return stub.waiting() > 0; }});
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

// The loop that a client would run through if it followed.
TEST(ServerSubject, ARedirectIsNotFollowed) {
  Rules rules;
  rules.redirect = "/v1/models?token=secret";
  const Stub loop(rules);
  const std::string remedy = "; give --url the address of the server itself";
  EXPECT_EQ(loop.error(), loop.url() + "/v1/models answers 307 and points to " + loop.url() + "/v1/models" + remedy);

  Stub stub;
  const auto subject = stub.subject([](Rules& changed) { changed.redirect = "http://other.example/x"; });
  const std::string words =
      "task t: " + stub.url() + "/v1/completions answers 307 and points to http://other.example/x" + remedy;
  EXPECT_EQ(failure(*subject, {task_of("t", "a")}), words);
  EXPECT_EQ(error_of(*subject, task_of("t", "a", " b")), words);
}

TEST(ServerSubject, ACertificateThatNobodyTrusts) {
  const http_testing::TempFolder folder;
  TlsOptions tls;
  tls.key_file = folder.file("key");
  tls.certificate_file = folder.file("certificate");
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stub "
      "-addext subjectAltName=IP:127.0.0.1 -keyout " +
      tls.key_file + " -out " + tls.certificate_file + " 2>" + folder.file("log");
  ASSERT_EQ(std::system(command.c_str()), 0) << "packages-test.txt names the package openssl";
  const Stub stub({}, tls);
  const std::string message = stub.error();
  EXPECT_TRUE(stub.url().starts_with("https://"));
  EXPECT_TRUE(message.starts_with(stub.url() + "/v1/models: the certificate of 127.0.0.1 is not trusted (")) << message;
  EXPECT_TRUE(message.ends_with("); for a private authority set SSL_CERT_FILE")) << message;
}

}  // namespace
}  // namespace kvarto
