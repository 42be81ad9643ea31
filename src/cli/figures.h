// The closing figures of a run: tokens, times, bytes read per second against what this machine can read, KV blocks,
// waste. Plain data and text. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "cli/generation.h"
#include "kvarto/engine.h"

namespace kvarto {

// KV bytes that computing the token behind `length` earlier ones reads: windows end what a layer sees.
double kv_read_bytes(const KvLayout& layout, uint64_t length);

struct Figures {
  uint64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double ttft_ms = 0, tpot_ms = 0;
  double tokens_per_s = 0;  // while generating, all samples together
  double weight_bytes_per_s = 0, kv_bytes_per_s = 0;
  uint64_t blocks_used = 0, blocks_total = 0;
  double waste = 0;  // share of used KV bytes that held no token, mean over the steps
};
Figures make_figures(Engine& engine, const Generation& generation);
// Several lines; `bandwidth` in bytes per second, 0 when unknown.
std::string describe(const Figures& figures, double bandwidth);
// One line, for a turn of a chat.
std::string describe_turn(const Figures& figures);

}  // namespace kvarto
