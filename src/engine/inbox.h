// Inbox: how other threads reach the engine's owner. Bounded; the owner empties it once per step and never waits on it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "kvarto/result.h"

namespace kvarto {

// What add() says when too many requests wait: an overload, which the request is not to blame for.
Error inbox_full();
bool is_inbox_full(const Error& error);

class Inbox {
 public:
  // Any thread. Gives the request its id. Errors: too many requests wait already, or the engine is closed.
  Result<RequestId> add(std::unique_ptr<RequestState> request);
  void cancel(RequestId id);
  Status health() const;
  bool empty() const;
  // Requests that arrived since take(), and tokens of their prompts.
  struct Arrived {
    uint32_t requests = 0;
    uint64_t prompt_tokens = 0;
  };
  Arrived arrived() const;

  // Owner. Takes what has arrived; `out` and `cancelled` are overwritten, their memory reused. `waiting` is how many
  // requests the owner has not started yet: they count against the bound.
  void take(std::vector<std::unique_ptr<RequestState>>& out, std::vector<RequestId>& cancelled, size_t waiting);
  // From now on everything is refused with `error`.
  void close(Error error);

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<RequestState>> arrived_;
  std::vector<RequestId> cancelled_;
  std::optional<Error> closed_;
  size_t waiting_ = 0;
  RequestId next_id_ = 1;
};

}  // namespace kvarto
