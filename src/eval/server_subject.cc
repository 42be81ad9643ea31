#include "eval/server_subject.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
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

tl::unexpected<Error> stopped() { return fail(ErrorCode::cancelled, "ended on request"); }

// Too much to do, or a gateway whose server is away for the moment.
bool is_busy(int status) { return status == 429 || status == 502 || status == 503 || status == 504; }

bool is_refusal(int status) { return status == 400 || status == 404 || status == 422 || status == 501; }

struct Posted {
  int status = 0;
  std::string text;  // the body; of a refusal its start
  double retry_after_s = 0;
};

// One connection that tries again: a busy server is waited for, one that cannot be reached is asked a few times.
class Line {
 public:
  Line(const OpenAiServer& server, const ServerOptions& options, std::function<bool()> stop)
      : server_(server), options_(options), stop_(std::move(stop)), connection_(http_options(server, stop_)) {}

  // A reply of any other status; errors name `who` asked.
  Result<Posted> post(const std::string& path, const std::string& body, const std::string& who) {
    const auto end = Clock::now() + Seconds(options_.timeout_s);
    double pause_s = options_.pause_s;
    for (int failures = 0;;) {
      Result<Posted> posted = send(path, body);
      if (posted && !is_busy(posted->status)) return posted;
      if (stop_()) return stopped();
      const bool dead = !posted && (posted.error().code != ErrorCode::network || ++failures == kMostFailures);
      const Seconds wait(std::min(kLongestPause, std::max(pause_s, posted ? posted->retry_after_s : 0)));
      if (dead || Clock::now() + wait > end) return give_up(path, posted, who);
      sleep(wait);
      if (stop_()) return stopped();
      pause_s = std::min(2 * pause_s, kLongestPause);
    }
  }

 private:
  static HttpClientOptions http_options(const OpenAiServer& server, const std::function<bool()>& stop) {
    HttpClientOptions out = server.http();
    out.cancelled = stop;
    return out;
  }

  Result<Posted> send(const std::string& path, const std::string& body) {
    Posted posted;
    BodySink sink;
    sink.data = [&](std::string_view bytes) -> Status {
      if (bytes.size() > kMaxReply - posted.text.size()) {
        return fail(ErrorCode::corrupt, server_.shown_url() + path + ": a reply longer than 64 MiB");
      }
      posted.text += bytes;
      return {};
    };
    ASSIGN_OR_RETURN(const HttpReply reply, connection_.send(server_.request(path, body), sink));
    posted.status = reply.status;
    posted.retry_after_s = retry_after_s(reply);
    if (reply.status / 100 != 2) posted.text = reply.error_text;
    return posted;
  }

  tl::unexpected<Error> give_up(const std::string& path, const Result<Posted>& posted, const std::string& who) const {
    if (posted) {
      const Error refusal = server_.refusal(path, posted->status, posted->text);
      return fail(refusal.code, who + ": " + refusal.message + "; it stays busy, try later");
    }
    const bool unreachable = posted.error().code == ErrorCode::network;
    return fail(posted.error().code,
                who + ": " + posted.error().message + (unreachable ? "; is the server still running?" : ""));
  }

  void sleep(Seconds wait) const {
    const auto end = Clock::now() + wait;
    for (Seconds left = wait; left.count() > 0 && !stop_(); left = end - Clock::now()) {
      std::this_thread::sleep_for(std::min(left, kLook));
    }
  }

  const OpenAiServer& server_;
  const ServerOptions& options_;
  const std::function<bool()> stop_;
  HttpConnection connection_;
};

std::string name_of(const Task& task) { return "task " + printable(task.id); }

tl::unexpected<Error> named(const Task& task, const Error& error) {
  return fail(error.code, name_of(task) + ": " + error.message);
}

tl::unexpected<Error> unreadable(const Error& error, const OpenAiServer& server, const Task& task, const char* path) {
  return named(task, {error.code, server.shown_url() + path + ": " + error.message});
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

Result<std::string> ask(Line& line, const OpenAiServer& server, const Task& task) {
  const char* const path = task.messages.empty() ? kCompletions : kChat;
  ASSIGN_OR_RETURN(const std::string body, body_of(server, task));
  ASSIGN_OR_RETURN(const Posted posted, line.post(path, body, name_of(task)));
  if (posted.status != kOk) {
    return named(task, server.refusal(path, posted.status, posted.text));
  }
  const Result<std::string> text = read_written(posted.text);
  if (!text) return unreadable(text.error(), server, task, path);
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

  Status run(const std::function<Status(size_t index, std::string text)>& done) {
    RETURN_IF_ERROR(start());
    for (size_t taken = 0; taken < tasks_.size(); ++taken) {
      ASSIGN_OR_RETURN(Answer answer, next_answer());
      if (!answer.text) return tl::unexpected<Error>(answer.text.error());
      RETURN_IF_ERROR(done(answer.index, std::move(*answer.text)));
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
      return ask(line, server_, task);
    } catch (const std::exception& error) {  // memory
      return named(task, {ErrorCode::internal, printable(error.what(), 200)});
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

class ServerSubject : public Subject {
 public:
  // `options.cancelled` is set.
  ServerSubject(OpenAiServer server, ServerOptions options)
      : server_(std::move(server)), options_(std::move(options)), line_(server_, options_, options_.cancelled) {}

  Result<uint32_t> count_tokens(std::string_view text) override;
  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor) override;
  Status generate(std::span<const Task* const> tasks,
                  const std::function<Status(size_t index, std::string text)>& done) override {
    return Generation(server_, options_, tasks).run(done);
  }

 private:
  std::string echo_body(const std::string& sent) const;

  const OpenAiServer server_;
  const ServerOptions options_;
  Line line_;
  std::optional<bool> tokenizes_;  // none: not known yet
  // --- likelihoods
  bool echoes_ = false, never_echoes_ = false;
  uint32_t least_tokens_ = 0;  // 1: it has refused to generate none
};

Result<uint32_t> ServerSubject::count_tokens(std::string_view text) {
  const std::string counted(text);
  const auto ask_tokenizer = [&] { return line_.post(kTokenize, server_.tokenize_body(counted), "counting tokens"); };
  if (!tokenizes_) {
    ASSIGN_OR_RETURN(const Posted first, ask_tokenizer());
    tokenizes_ = first.status == kOk && server_.tokens_of(first.text);
  }
  const char* const path = *tokenizes_ ? kTokenize : kCompletions;
  ASSIGN_OR_RETURN(
      const Posted posted,
      *tokenizes_ ? ask_tokenizer() : line_.post(path, server_.one_token_body(counted, false), "counting tokens"));
  if (posted.status != kOk) return tl::unexpected<Error>(server_.refusal(path, posted.status, posted.text));
  return *tokenizes_ ? server_.tokens_of(posted.text) : server_.prompt_tokens_of(posted.text);
}

std::string ServerSubject::echo_body(const std::string& sent) const {
  return dump(Json{{"model", server_.model()},
                   {"prompt", sent},
                   {"echo", true},
                   {"logprobs", 1},
                   {"max_tokens", least_tokens_},
                   {"temperature", 0},
                   {"stream", false}});
}

Result<std::optional<Likelihood>> ServerSubject::likelihood(const Task& task, bool floor) {
  const std::string& prompt = floor ? task.floor_prompt : task.prompt;
  if (prompt.empty() || task.answer.empty()) return std::optional<Likelihood>();
  const std::string sent = prompt + task.answer;
  while (!never_echoes_) {
    ASSIGN_OR_RETURN(const Posted posted, line_.post(kCompletions, echo_body(sent), name_of(task)));
    if (posted.status == kOk) {
      const Result<EchoReply> read = read_echo(posted.text, sent, task.answer, least_tokens_);
      if (!read) return unreadable(read.error(), server_, task, kCompletions);
      if (!read->echoed) break;
      echoes_ = true;
      return read->likelihood;
    }
    // Once it has echoed, a refusal is about this task.
    if (echoes_ || !is_refusal(posted.status)) {
      return named(task, server_.refusal(kCompletions, posted.status, posted.text));
    }
    if (least_tokens_ == 1) break;
    least_tokens_ = 1;
  }
  never_echoes_ = true;
  return std::optional<Likelihood>();
}

}  // namespace

Result<FoundServer> find_server(const ServerOptions& options) {
  ServerOptions used = options;
  if (!used.cancelled) used.cancelled = [] { return false; };
  ASSIGN_OR_RETURN(OpenAiServer found, OpenAiServer::find({.url = used.url,
                                                           .model = used.model,
                                                           .api_key = used.api_key,
                                                           .timeout_s = used.timeout_s,
                                                           .cancelled = used.cancelled}));
  FoundServer server;
  server.model = found.model();
  server.subject = std::make_unique<ServerSubject>(std::move(found), std::move(used));
  return server;
}

}  // namespace kvarto
