#include "engine/inbox.h"

#include <string>
#include <utility>

namespace kvarto {
namespace {

constexpr size_t kMostWaiting = 65536;

}  // namespace

Error inbox_full() {
  return {ErrorCode::out_of_memory,
          std::to_string(kMostWaiting) + " requests are waiting already; try again when some are done"};
}

bool is_inbox_full(const Error& error) {
  const Error full = inbox_full();
  return error.code == full.code && error.message == full.message;
}

Result<RequestId> Inbox::add(std::unique_ptr<RequestState> request) {
  const std::lock_guard lock(mutex_);
  if (closed_) return tl::unexpected<Error>(*closed_);
  if (waiting_ + arrived_.size() >= kMostWaiting) {
    return tl::unexpected(inbox_full());
  }
  request->id = next_id_++;
  const RequestId id = request->id;
  arrived_.push_back(std::move(request));
  return id;
}

void Inbox::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
}

Status Inbox::health() const {
  const std::lock_guard lock(mutex_);
  if (closed_) return tl::unexpected<Error>(*closed_);
  return {};
}

bool Inbox::empty() const {
  const std::lock_guard lock(mutex_);
  return arrived_.empty() && cancelled_.empty();
}

Inbox::Arrived Inbox::arrived() const {
  const std::lock_guard lock(mutex_);
  Arrived all{.requests = static_cast<uint32_t>(arrived_.size())};
  for (const auto& request : arrived_) all.prompt_tokens += request->prompt_tokens();
  return all;
}

void Inbox::take(std::vector<std::unique_ptr<RequestState>>& out, std::vector<RequestId>& cancelled, size_t waiting) {
  out.clear();
  cancelled.clear();
  const std::lock_guard lock(mutex_);
  out.swap(arrived_);
  cancelled.swap(cancelled_);
  waiting_ = waiting + out.size();
}

void Inbox::close(Error error) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(error);
}

}  // namespace kvarto
