#include "http/reply_channel.h"

#include <utility>

#include "base/check.h"

namespace kvarto {
namespace {

// A burst may be longer than what may pend (many choices that begin in one step); who reads has taken some of it soon.
constexpr std::chrono::seconds kPatience{5};
constexpr size_t kLongestBurst = 16;  // times max_pending_bytes

}  // namespace

ReplyChannel::ReplyChannel(std::shared_ptr<FrontQueue> queue, std::weak_ptr<ReplyWriter> writer,
                           size_t max_pending_bytes)
    : queue_(std::move(queue)), writer_(std::move(writer)), max_pending_bytes_(max_pending_bytes) {}

// One notice is enough until the connection has found nothing to write.
void ReplyChannel::notify(std::unique_lock<std::mutex> lock) {
  const bool first = !std::exchange(notified_, true);
  lock.unlock();
  if (first) queue_->push(shared_from_this());
}

bool ReplyChannel::reply(ServerReply reply) {
  std::unique_lock lock(mutex_);
  if (closed_ || begun_) return false;
  head_ = std::move(reply);
  begun_ = finished_ = true;
  notify(std::move(lock));
  return true;
}

void ReplyChannel::start(ServerReply head) {
  std::unique_lock lock(mutex_);
  if (closed_) return;
  CHECK(!begun_, "a request is answered twice");
  pieces_ = std::exchange(head.body, {});
  progress_at_ = std::chrono::steady_clock::now();
  head_ = std::move(head);
  begun_ = streamed_ = true;
  notify(std::move(lock));
}

bool ReplyChannel::too_slow() {
  const size_t pending = pieces_.size() + unsent_;
  if (pending == 0) progress_at_ = std::chrono::steady_clock::now();
  if (pending <= max_pending_bytes_) return false;
  if (pending / kLongestBurst > max_pending_bytes_) return true;
  return std::chrono::steady_clock::now() - progress_at_ > kPatience;
}

bool ReplyChannel::write(std::string_view piece) {
  std::unique_lock lock(mutex_);
  if (closed_ || finished_) return false;
  CHECK(streamed_, "a piece of a reply that has not begun");
  if (too_slow()) {
    closed_ = fell_behind_ = true;
    lock.unlock();
    queue_->push(shared_from_this());  // also while a write hangs: nobody looks by himself then
    return false;
  }
  pieces_ += piece;
  if (!piece.empty()) notify(std::move(lock));
  return true;
}

void ReplyChannel::finish() {
  std::unique_lock lock(mutex_);
  if (closed_ || finished_) return;
  CHECK(streamed_, "the end of a reply that has not begun");
  finished_ = true;
  notify(std::move(lock));
}

bool ReplyChannel::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void ReplyChannel::on_close(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (written_) return;
    if (!gone_) {
      on_close_.swap(call);  // the old one is destroyed outside the lock
      return;
    }
  }
  // Once the server has stopped there is no front thread to call from.
  if (!queue_->call(call)) run_guarded(call);
}

void ReplyChannel::set_label(std::string label) {
  const std::lock_guard lock(mutex_);
  label_ = std::move(label);
}

std::string ReplyChannel::label() const {
  const std::lock_guard lock(mutex_);
  return label_;
}

void ReplyChannel::abandon() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || closed_) return;
    closed_ = abandoned_ = true;
  }
  queue_->push(shared_from_this());
}

void ReplyChannel::on_front() {
  try {
    if (const auto writer = writer_.lock()) writer->reply_ready();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    notified_ = false;  // what comes next gives notice again
    throw;
  }
}

bool ReplyChannel::take(ReplyPart& part) {
  const std::lock_guard lock(mutex_);
  part.pieces.clear();
  unsent_ = 0;
  if (!head_ && pieces_.empty() && (!finished_ || end_taken_)) {
    notified_ = false;
    return false;
  }
  part.head = std::exchange(head_, std::nullopt);
  part.pieces.swap(pieces_);
  part.streamed = streamed_;
  part.end = end_taken_ = finished_;
  unsent_ = part.pieces.size();
  return true;
}

void ReplyChannel::set_unsent(size_t bytes) {
  const std::lock_guard lock(mutex_);
  unsent_ = bytes;
  progress_at_ = std::chrono::steady_clock::now();
}

bool ReplyChannel::broken() const {
  const std::lock_guard lock(mutex_);
  return fell_behind_ || (abandoned_ && begun_);
}

bool ReplyChannel::fell_behind() const {
  const std::lock_guard lock(mutex_);
  return fell_behind_;
}

bool ReplyChannel::never_begun() const {
  const std::lock_guard lock(mutex_);
  return abandoned_ && !begun_;
}

void ReplyChannel::give_up(ServerReply reply) {
  const std::lock_guard lock(mutex_);
  if (!abandoned_ || begun_) return;
  head_ = std::move(reply);
  begun_ = finished_ = true;
  abandoned_ = false;
}

void ReplyChannel::written() {
  std::function<void()> dropped;  // destroyed outside the lock: it may hold the exchange
  const std::lock_guard lock(mutex_);
  written_ = true;
  dropped.swap(on_close_);
}

void ReplyChannel::client_gone() {
  std::function<void()> call;
  std::string pieces;
  {
    const std::lock_guard lock(mutex_);
    if (written_ || gone_) return;
    closed_ = gone_ = true;
    call.swap(on_close_);
    pieces.swap(pieces_);
    head_.reset();
  }
  if (call) run_guarded(call);
}

}  // namespace kvarto
