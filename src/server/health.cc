#include "server/health.h"

#include <algorithm>

namespace kvarto {

bool Health::look(uint64_t now_us, uint64_t last_tick_us, const EngineStats& stats, const Status& engine) {
  const uint64_t progress = stats.steps + stats.computed_prompt_tokens + stats.generated_tokens;
  const bool moved = progress != progress_;
  const bool wedged = waiting_ && !moved && stats.running == 0 && stats.waiting > 0;
  waiting_ = stats.running == 0 && stats.waiting > 0;
  if (moved || (stats.running == 0 && stats.waiting == 0)) progress_us_ = now_us;
  progress_ = progress;
  if (wedged) ++pushes_;

  trouble_.reset();
  const auto seconds = [](uint64_t us) { return std::to_string(us / 1'000'000) + " s"; };
  const uint64_t silent_us = now_us - std::min(now_us, last_tick_us), stalled_us = now_us - progress_us_;
  if (!engine) {
    trouble_ = "the engine stopped: " + engine.error().message;
  } else if (stats.running + stats.waiting > 0 && stalled_us > limits_.stall_us) {
    trouble_ = std::to_string(stats.running) + " requests run and " + std::to_string(stats.waiting) +
               " wait, but no token was computed for " + seconds(stalled_us);
  } else if (stats.running == 0 && silent_us > limits_.tick_us) {
    trouble_ = "the engine's thread did not tick for " + seconds(silent_us);
  }
  return wedged;
}

}  // namespace kvarto
