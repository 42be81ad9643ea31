// Lines of the log that operators and their scripts know from vLLM: the capacity of the KV cache at start, and the
// engine's numbers every ten seconds. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvarto/types.h"
#include "server/metrics.h"

namespace kvarto {

// What an arena can hold, said as vLLM says it.
struct KvCapacity {
  uint32_t max_model_len = 0;
  double concurrency = 0;  // requests of max_model_len tokens, a fraction included
  uint64_t tokens = 0;     // floor(concurrency * max_model_len)
};
// `chunk_tokens`: the most that one step computes.
KvCapacity kv_capacity(const KvLayout& layout, size_t arena_bytes, uint32_t max_model_len, uint32_t chunk_tokens);

// "CPU KV cache size: 83,488 tokens, Maximum concurrency for 32,768 tokens per request: 2.55x"
std::string kv_cache_size_line(const KvCapacity& capacity, std::string_view device = "CPU");
// "Maximum concurrency for 2,048 tokens per request: 40.80x": for a length that people use, beside the line above.
std::string kv_typical_line(const KvLayout& layout, size_t arena_bytes, uint32_t typical_tokens, uint32_t chunk_tokens);

struct StatsLine {
  std::string text;
  bool quiet = false;  // nothing was computed since; vLLM logs such a line at debug level when the one before was, too
};
StatsLine stats_line(const StatsNumbers& previous, const StatsNumbers& now, double seconds,
                     std::string_view device = "CPU");

}  // namespace kvarto
