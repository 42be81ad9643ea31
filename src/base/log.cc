#include "base/log.h"

#include <signal.h>
#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace kvarto {
namespace {

constexpr const char* kName = "kvarto";
constexpr size_t kMostWaiting = 4096;

// Hands lines on at once, or, when it is told to, by way of a thread. That one is left to itself: it may stand in a
// write that never ends, for which no exit shall wait.
class LineQueue : public spdlog::sinks::sink, public std::enable_shared_from_this<LineQueue> {
 public:
  void start() {
    if (queued_.exchange(true)) return;
    // Signals are others' to take: a thread that was made before they are blocked would end the process.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([self = shared_from_this()] { self->write(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void log(const spdlog::details::log_msg& line) override {
    if (!queued_) return out_->log(line);
    {
      const std::scoped_lock lock(mutex_);
      waiting_.emplace_back(line);
      if (waiting_.size() > kMostWaiting) {
        waiting_.pop_front();
        ++dropped_;
      }
    }
    came_.notify_one();
  }
  void flush() override { out_->flush(); }
  void set_pattern(const std::string& pattern) override { out_->set_pattern(pattern); }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    out_->set_formatter(std::move(formatter));
  }
  bool wait_empty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return written_.wait_for(lock, limit, [this] { return waiting_.empty() && !writing_; });
  }

 private:
  [[noreturn]] void write() {
    std::unique_lock lock(mutex_);
    while (true) {
      came_.wait(lock, [this] { return !waiting_.empty(); });
      const spdlog::details::log_msg_buffer line = std::move(waiting_.front());
      waiting_.pop_front();
      const uint64_t dropped = std::exchange(dropped_, 0);
      writing_ = true;
      lock.unlock();
      write_line(line, dropped);
      lock.lock();
      writing_ = false;
      if (waiting_.empty()) written_.notify_all();
    }
  }
  void write_line(const spdlog::details::log_msg& line, uint64_t dropped) {
    try {
      if (dropped > 0) {
        const std::string told = std::to_string(dropped) + " log lines were dropped: stderr was not read";
        out_->log(spdlog::details::log_msg(kName, spdlog::level::warn, told));
      }
      out_->log(line);
    } catch (...) {  // there is nowhere to say so
    }
  }

  const std::shared_ptr<spdlog::sinks::sink> out_ = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::atomic<bool> queued_ = false;
  std::mutex mutex_;  // of the next ones
  std::condition_variable came_, written_;
  std::deque<spdlog::details::log_msg_buffer> waiting_;
  uint64_t dropped_ = 0;
  bool writing_ = false;
};

const std::shared_ptr<LineQueue>& lines() {
  static const auto instance = std::make_shared<LineQueue>();
  return instance;
}

// A logger of our own: the host program's default spdlog logger, if it has one, is left alone.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>(kName, lines());
    made->set_level(spdlog::level::warn);
    made->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum native(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(native(level)); }
void log(LogLevel level, std::string_view message) { logger().log(native(level), message); }
void queue_log_lines() { lines()->start(); }
bool flush_log(std::chrono::milliseconds limit) { return lines()->wait_empty(limit); }

}  // namespace kvarto
