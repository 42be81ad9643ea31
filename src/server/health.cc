#include "server/health.h"

#include <algorithm>

namespace kvarto {

bool Health::look(uint64_t now_us, uint64_t last_tick_us, const EngineStats& stats, const Status& engine,
                  bool in_step) {
  const uint64_t progress = stats.steps + stats.computed_prompt_tokens + stats.generated_tokens;
  const bool moved = progress != progress_ || progress_us_ == 0;
  const bool work = in_step || stats.running + stats.waiting > 0;
  const bool ticked = last_tick_us != tick_us_;
  const bool wedged = waiting_ && !moved && ticked && stats.running == 0 && stats.waiting > 0;
  waiting_ = stats.running == 0 && stats.waiting > 0;
  if (moved || !work) progress_us_ = now_us;
  progress_ = progress;
  tick_us_ = last_tick_us;
  if (wedged) ++pushes_;

  trouble_.reset();
  const auto seconds = [](uint64_t us) { return std::to_string(us / 1'000'000) + " s"; };
  const uint64_t silent_us = now_us - std::min(now_us, last_tick_us), stalled_us = now_us - progress_us_;
  if (!engine) {
    trouble_ = "the engine stopped: " + engine.error().message;
  } else if (work && stalled_us > limits_.stall_us) {
    trouble_ = "there are requests, but no token was computed for " + seconds(stalled_us) + " (before that " +
               std::to_string(stats.running) + " ran; " + std::to_string(stats.waiting) + " wait)";
  } else if (!work && silent_us > limits_.tick_us) {
    trouble_ = "the engine's thread did not tick for " + seconds(silent_us);
  }
  return wedged;
}

}  // namespace kvarto
