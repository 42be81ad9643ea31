#include "http/front_queue.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "http/reply_channel.h"

namespace kvarto {

void run_guarded(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("HTTP server: a callback threw: ") + error.what());
  } catch (...) {
    log(LogLevel::error, "HTTP server: a callback threw");
  }
}

void FrontQueue::wake_once() {
  if (!awake_) wake_();
  awake_ = true;
}

void FrontQueue::push(std::shared_ptr<ReplyChannel> channel) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  channels_.push_back(std::move(channel));
  wake_once();
}

bool FrontQueue::call(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  calls_.push_back(std::move(function));
  wake_once();
  return true;
}

void FrontQueue::drain() {
  std::vector<std::shared_ptr<ReplyChannel>> channels;
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(mutex_);
    channels.swap(channels_);
    calls.swap(calls_);
    awake_ = false;
  }
  for (const auto& channel : channels) run_guarded([&] { channel->on_front(); });
  for (const auto& call : calls) run_guarded(call);
}

void FrontQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace kvarto
