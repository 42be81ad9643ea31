#include "cli/serve_signals.h"

#include <poll.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/output.h"
#include "cli/verb.h"

namespace kvarto {
namespace {

// Whoever reads stderr may have stopped to; the process ends all the same.
void last_note(const char* text) {
  flush_log(std::chrono::milliseconds(200));
  pollfd errors{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&errors, 1, 0) == 1) note(text);
}

[[noreturn]] void end_at_once(int signal_number) { ::_exit(128 + signal_number); }

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGINT);
  sigaddset(&watched_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignals::serving() {
  const std::lock_guard lock(mutex_);
  serving_ = true;
}

int StopSignals::wait() {
  std::unique_lock lock(mutex_);
  came_.wait(lock, [this] { return first_ != 0 || given_up_; });
  return first_;
}

void StopSignals::give_up() {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
  came_.notify_all();
}

void StopSignals::watch() {
  while (true) {
    int number = 0;
    if (sigwait(&watched_, &number) != 0) continue;
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (!serving_) {
      last_note("kvarto: stopped while loading");
      end_at_once(number);
    }
    if (first_ != 0) {
      last_note("kvarto: a second signal: ended at once");
      end_at_once(number);
    }
    first_ = number;
    came_.notify_all();
  }
}

}  // namespace kvarto
