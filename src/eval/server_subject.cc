#include "eval/server_subject.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "eval/completion_reply.h"
#include "eval/judge.h"
#include "eval/openai_server.h"
#include "format/printable.h"
#include "http/client.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr char kCompletions[] = "v1/completions", kChat[] = "v1/chat/completions", kTokenize[] = "tokenize";
constexpr size_t kMaxReply = size_t{64} << 20;
constexpr Seconds kLook{0.05};  // how often waiting threads look around
constexpr double kLongestPause = 60;
constexpr int kMostFailures = 4;  // of the connection, of one request
constexpr int kOk = 200;

// What is asked to see whether a server echoes: of no context too long, and cut into tokens like any text.
constexpr char kProbe[] = "One, two, three, four,", kProbeAnswer[] = " five, six";
constexpr char kProbing[] = "asking for the log-probabilities of a prompt", kCounting[] = "counting tokens";

tl::unexpected<Error> stopped() { return fail(ErrorCode::cancelled, "ended on request"); }

// Too much to do, or a gateway whose server is away for the moment.
bool is_busy(int status) { return status == 429 || status == 502 || status == 503 || status == 504; }

// Of a question that any server answers that can; else it is in trouble, and says nothing of what it can.
bool means_never(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::not_found || code == ErrorCode::unsupported;
}

std::string seconds_text(double seconds) { return std::to_string(std::llround(std::ceil(seconds))) + " s"; }

struct Posted {
  HttpReply reply;
  std::string text;  // the body of a reply of 2xx
};

// One connection that tries again: a busy server is waited for, one that cannot be reached is asked a few times.
class Line {
 public:
  Line(const OpenAiServer& server, const ServerOptions& options, std::function<bool()> stop)
      : server_(server),
        timeout_s_(options.timeout_s),
        first_pause_s_(options.pause_s),
        stop_(std::move(stop)),
        connection_(http_options()) {}
  Line(const Line&) = delete;  // its connection asks it
  Line& operator=(const Line&) = delete;

  const OpenAiServer& server() const { return server_; }

  // A reply of any status but a busy server's; errors name `who` asked.
  Result<Posted> post(const std::string& path, const std::string& body, const std::string& who) {
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(timeout_s_));
    double pause_s = first_pause_s_;
    for (int failures = 0;;) {
      Result<Posted> posted = send(path, body);
      if (posted && !is_busy(posted->reply.status)) return posted;
      if (stop_()) return stopped();
      const bool dead = !posted && (posted.error().code != ErrorCode::network || ++failures == kMostFailures);
      const Seconds wait(std::max(pause_s, posted ? retry_after_s(posted->reply) : 0));
      if (dead || Clock::now() + wait > end_) return give_up(path, posted, who);
      sleep(wait);
      if (stop_()) return stopped();
      pause_s = std::min(2 * pause_s, kLongestPause);
    }
  }

 private:
  bool is_late() const { return Clock::now() >= end_; }

  HttpClientOptions http_options() const {
    HttpClientOptions out = server_.http();
    out.cancelled = [this] { return stop_() || is_late(); };
    return out;
  }

  Result<Posted> send(const std::string& path, const std::string& body) {
    Posted posted;
    const auto ended = [this] { return stop_() || is_late(); };
    const BodySink sink = whole_body(server_.shown_url() + path, kMaxReply, ended, posted.text);
    ASSIGN_OR_RETURN(posted.reply, connection_.send(server_.request(path, body), sink));
    return posted;
  }

  tl::unexpected<Error> give_up(const std::string& path, const Result<Posted>& posted, const std::string& who) const {
    if (posted) {
      const Error refusal = server_.refusal(path, posted->reply);
      const double asked_s = retry_after_s(posted->reply);
      return fail(refusal.code, who + ": " + refusal.message + "; it stays busy" +
                                    (asked_s > 0 ? " (wait " + seconds_text(asked_s) + ", it says)" : std::string()) +
                                    ", try later");
    }
    const Error& error = posted.error();
    if (error.code != ErrorCode::network) return fail(error.code, who + ": " + error.message);
    if (is_late()) {
      return fail(error.code, who + ": " + server_.shown_url() + path + ": no whole answer within " +
                                  seconds_text(timeout_s_) + "; is the server too slow, or stuck?");
    }
    return fail(error.code, who + ": " + with_question(error, "is the server still running?"));
  }

  void sleep(Seconds wait) const {
    const auto end = Clock::now() + wait;
    for (Seconds left = wait; left.count() > 0 && !stop_(); left = end - Clock::now()) {
      std::this_thread::sleep_for(std::min(left, kLook));
    }
  }

  const OpenAiServer server_;
  const double timeout_s_, first_pause_s_;
  const std::function<bool()> stop_;
  Clock::time_point end_ = Clock::time_point::max();  // of the request on its way
  HttpConnection connection_;
};

std::string name_of(const Task& task) { return "task " + printable(task.id); }

tl::unexpected<Error> named(const std::string& who, const Error& error) {
  return fail(error.code, who + ": " + error.message);
}

tl::unexpected<Error> unreadable(const Error& error, const OpenAiServer& server, const char* path,
                                 const std::string& who) {
  return named(who, {error.code, server.shown_url() + path + ": " + error.message});
}

Result<std::string> body_of(const OpenAiServer& server, const Task& task) {
  Json body{{"model", server.model()}, {"stream", false}, {"temperature", 0}, {"max_tokens", task.max_tokens}};
  if (task.messages.empty()) {
    body["prompt"] = task.prompt;
  } else {
    ASSIGN_OR_RETURN(body["messages"], parse_json(task.messages));
  }
  if (!task.stop.empty()) body["stop"] = task.stop;
  return dump(body);
}

Result<std::string> ask(Line& line, const Task& task) {
  const char* const path = task.messages.empty() ? kCompletions : kChat;
  const std::string who = name_of(task);
  ASSIGN_OR_RETURN(const std::string body, body_of(line.server(), task));
  ASSIGN_OR_RETURN(const Posted posted, line.post(path, body, who));
  if (posted.reply.status != kOk) return named(who, line.server().refusal(path, posted.reply));
  const Result<std::string> text = read_written(posted.text);
  if (!text) return unreadable(text.error(), line.server(), path, who);
  return std::string(cut_at_stop(task, *text));
}

// Threads that ask, each on its own connection, and one that takes their answers.
class Generation {
 public:
  Generation(const OpenAiServer& server, const ServerOptions& options, std::span<const Task* const> tasks)
      : server_(server), options_(options), tasks_(tasks) {}
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  Status run(const std::function<Status(size_t index, Result<std::string> text)>& done) {
    RETURN_IF_ERROR(start());
    for (size_t taken = 0; taken < tasks_.size(); ++taken) {
      ASSIGN_OR_RETURN(Answer answer, next_answer());
      const bool refused = !answer.text && answer.text.error().code == ErrorCode::invalid_argument;
      if (!answer.text && !refused) return tl::unexpected<Error>(answer.text.error());
      RETURN_IF_ERROR(done(answer.index, std::move(answer.text)));
    }
    return {};
  }

 private:
  struct Answer {
    size_t index = 0;
    Result<std::string> text;
  };

  // With fewer threads where the system has no more.
  Status start() {
    const size_t wanted = std::min<size_t>(std::max(1u, options_.concurrency), tasks_.size());
    try {
      while (threads_.size() < wanted) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      if (threads_.empty()) return fail(ErrorCode::io, std::string("cannot start a thread: ") + error.what());
    }
    return {};
  }

  Result<Answer> next_answer() {
    std::unique_lock lock(mutex_);
    while (answers_.empty()) {
      arrived_.wait_for(lock, kLook);
      if (answers_.empty() && options_.cancelled()) return stopped();
    }
    Answer answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }

  // --- the other threads

  void work() {
    Line line(server_, options_, [this] { return stop_.load(); });
    for (size_t i = next_++; i < tasks_.size() && !stop_; i = next_++) put({i, answer_to(line, *tasks_[i])});
  }

  Result<std::string> answer_to(Line& line, const Task& task) const {
    try {
      return ask(line, task);
    } catch (const std::exception& error) {  // memory
      return named(name_of(task), {ErrorCode::internal, printable(error.what(), 200)});
    }
  }

  void put(Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    arrived_.notify_one();
  }

  const OpenAiServer& server_;
  const ServerOptions& options_;
  const std::span<const Task* const> tasks_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards answers_
  std::condition_variable arrived_;
  std::deque<Answer> answers_;
  std::vector<std::thread> threads_;
};

// By the server's tokenizer, else by what a request of one token is billed for.
class TokenCounter {
 public:
  // `options.cancelled` is set.
  TokenCounter(const OpenAiServer& server, const ServerOptions& options) : line_(server, options, options.cancelled) {}

  Result<uint32_t> count(const std::string& text) {
    const OpenAiServer& server = line_.server();
    if (!tokenizes_) {
      ASSIGN_OR_RETURN(const Posted first, line_.post(kTokenize, server.tokenize_body(text), kCounting));
      tokenizes_ = first.reply.status == kOk && server.tokens_of(first.text);
    }
    const char* const path = *tokenizes_ ? kTokenize : kCompletions;
    const std::string body = *tokenizes_ ? server.tokenize_body(text) : server.one_token_body(text, false);
    ASSIGN_OR_RETURN(const Posted posted, line_.post(path, body, kCounting));
    if (posted.reply.status != kOk) return named(kCounting, server.refusal(path, posted.reply));
    return *tokenizes_ ? server.tokens_of(posted.text) : server.prompt_tokens_of(posted.text);
  }

 private:
  Line line_;
  std::optional<bool> tokenizes_;  // none: not known yet
};

class ServerSubject : public Subject {
 public:
  // `options.cancelled` is set.
  ServerSubject(const OpenAiServer& server, const ServerOptions& options)
      : options_(options), line_(server, options_, options_.cancelled) {}

  // Whether there are likelihoods. Asked once, before all tasks: what one of them meets says nothing of the others.
  Result<bool> find_echo();
  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor) override;
  Status generate(std::span<const Task* const> tasks,
                  const std::function<Status(size_t index, Result<std::string> text)>& done) override {
    return Generation(line_.server(), options_, tasks).run(done);
  }

 private:
  std::string echo_body(const std::string& sent) const;
  Result<EchoReply> echo(const std::string& sent, std::string_view answer, const std::string& who);

  const ServerOptions options_;
  Line line_;
  bool echoes_ = false;
  uint32_t least_tokens_ = 0;  // 1: it refuses to generate none
};

std::string ServerSubject::echo_body(const std::string& sent) const {
  return dump(Json{{"model", line_.server().model()},
                   {"prompt", sent},
                   {"echo", true},
                   {"logprobs", 1},
                   {"max_tokens", least_tokens_},
                   {"temperature", 0},
                   {"stream", false}});
}

Result<EchoReply> ServerSubject::echo(const std::string& sent, std::string_view answer, const std::string& who) {
  ASSIGN_OR_RETURN(const Posted posted, line_.post(kCompletions, echo_body(sent), who));
  if (posted.reply.status != kOk) return named(who, line_.server().refusal(kCompletions, posted.reply));
  const Result<EchoReply> reply = read_echo(posted.text, sent, answer, least_tokens_);
  if (!reply) return unreadable(reply.error(), line_.server(), kCompletions, who);
  return reply;
}

Result<bool> ServerSubject::find_echo() {
  for (const uint32_t tokens : {0u, 1u}) {
    least_tokens_ = tokens;
    const Result<EchoReply> reply = echo(std::string(kProbe) + kProbeAnswer, kProbeAnswer, kProbing);
    if (!reply && !means_never(reply.error().code)) return tl::unexpected<Error>(reply.error());
    echoes_ = reply && reply->likelihood;
    if (reply && (echoes_ || !reply->echoed)) break;
  }
  return echoes_;
}

Result<std::optional<Likelihood>> ServerSubject::likelihood(const Task& task, bool floor) {
  const std::string& prompt = floor ? task.floor_prompt : task.prompt;
  if (!echoes_ || prompt.empty() || task.answer.empty()) return std::optional<Likelihood>();
  ASSIGN_OR_RETURN(const EchoReply reply, echo(prompt + task.answer, task.answer, name_of(task)));
  return reply.likelihood;
}

}  // namespace

Result<FoundServer> find_server(const ServerOptions& options) {
  ServerOptions used = options;
  if (!used.cancelled) used.cancelled = [] { return false; };
  ASSIGN_OR_RETURN(const OpenAiServer found, OpenAiServer::find({.url = used.url,
                                                                 .model = used.model,
                                                                 .api_key = used.api_key,
                                                                 .timeout_s = used.timeout_s,
                                                                 .cancelled = used.cancelled}));
  auto subject = std::make_unique<ServerSubject>(found, used);
  FoundServer server;
  server.url = found.shown_url();
  server.model = found.model();
  ASSIGN_OR_RETURN(server.echoes, subject->find_echo());
  server.count_tokens = [counter = std::make_shared<TokenCounter>(found, used)](std::string_view text) {
    return counter->count(std::string(text));
  };
  server.subject = std::move(subject);
  return server;
}

}  // namespace kvarto
