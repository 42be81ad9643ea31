// Health: does the engine still do what it is there for? Fed once in a while with what the engine's thread publishes;
// decides whether /health says yes, and when the scheduler has to be given a push. Reads no clock. Front thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvarto/engine.h"

namespace kvarto {

struct HealthLimits {
  uint64_t tick_us = 10'000'000;   // longest time between two ticks of an idle loop (it ticks each second)
  uint64_t stall_us = 60'000'000;  // longest time without a computed token while there is work
};

class Health {
 public:
  explicit Health(HealthLimits limits = {}) : limits_(limits) {}

  // What the engine says now; `in_step`: see EngineThread. Returns true when requests wait, nothing runs, and the loop
  // has ticked since the last look without computing anything: the scheduler is wedged, and a push is due.
  bool look(uint64_t now_us, uint64_t last_tick_us, const EngineStats& stats, const Status& engine,
            bool in_step = false);
  // Why the answer is no; nullopt: all is well.
  const std::optional<std::string>& trouble() const { return trouble_; }
  uint64_t pushes() const { return pushes_; }

 private:
  const HealthLimits limits_;
  std::optional<std::string> trouble_;
  uint64_t progress_ = 0;     // steps, prompt and generated tokens together
  uint64_t progress_us_ = 0;  // when that last changed, or there was no work
  uint64_t tick_us_ = 0;      // last tick at the last look
  bool waiting_ = false;      // so it was at the last look
  uint64_t pushes_ = 0;
};

}  // namespace kvarto
