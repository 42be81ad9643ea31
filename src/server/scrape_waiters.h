// ScrapeWaiters: whoever waits for the numbers of one moment. The engine is asked once for all that wait, and not again
// before it has answered: numbers of every block cost its thread time. Owned by the server; front thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "http/front_queue.h"
#include "server/metrics.h"

namespace kvarto {

class ScrapeWaiters {
 public:
  using Use = std::function<void(const MetricsSnapshot&)>;

  // `first`: nobody waited before; `ask`: the engine has to be asked.
  struct Added {
    bool first = false, ask = false;
  };
  Added add(Use use) {
    waiting_.push_back(std::move(use));
    return {.first = waiting_.size() == 1, .ask = !std::exchange(asked_, true)};
  }
  // The engine answered, or failed to.
  void answered() { asked_ = false; }
  // Changes with every tell(): those that wait are others then.
  uint64_t round() const { return round_; }
  bool empty() const { return waiting_.empty(); }
  // To all that wait; what one of them throws is logged.
  void tell(const MetricsSnapshot& snapshot) {
    ++round_;
    for (const Use& use : std::exchange(waiting_, {})) run_guarded([&] { use(snapshot); });
  }

 private:
  std::vector<Use> waiting_;
  bool asked_ = false;
  uint64_t round_ = 0;
};

}  // namespace kvarto
