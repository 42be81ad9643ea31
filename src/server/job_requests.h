// JobRequests: under which ids the engine has the prompts of one job, so that all of them can be given up, whoever
// finds first that nobody wants them and however many were submitted by then. Any thread.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "kvarto/engine.h"

namespace kvarto {

class JobRequests {
 public:
  // `most`: that will be added.
  JobRequests(size_t most, std::function<void(RequestId)> cancel) : cancel_(std::move(cancel)) { ids_.reserve(most); }

  // The engine took one more; after cancel() it is cancelled at once.
  void add(RequestId id) {
    {
      const std::scoped_lock lock(mutex_);
      ++count_;
      if (!cancelled_) {
        ids_.push_back(id);
        return;
      }
    }
    cancel_(id);
  }
  // Ids of requests that have ended mean nothing to the engine.
  void cancel() {
    std::vector<RequestId> ids;
    {
      const std::scoped_lock lock(mutex_);
      cancelled_ = true;
      ids.swap(ids_);
    }
    for (const RequestId id : ids) cancel_(id);
  }
  size_t count() const {
    const std::scoped_lock lock(mutex_);
    return count_;
  }

 private:
  const std::function<void(RequestId)> cancel_;
  mutable std::mutex mutex_;
  std::vector<RequestId> ids_;  // not cancelled
  size_t count_ = 0;
  bool cancelled_ = false;
};

}  // namespace kvarto
