// What `kvarto serve` decides about memory before it loads: the size of the KV cache and the longest request, from what
// was asked for and what there is. Refusals say what fits. Main thread.
#pragma once

#include <string>
#include <vector>

#include "cli/serve_flags.h"
#include "kvarto/plan.h"

namespace kvarto {

class GgufFile;

// What the size is chosen from.
struct PoolNumbers {
  size_t available_bytes = 0;  // that this process may use
  size_t other_bytes = 0;      // weights, buffers, overhead: all but the KV cache and its records
  size_t useful_bytes = 0;     // that max_num_seqs requests of maximum length can use, or what a plan leaves for them
  const KvLayout* layout = nullptr;
};
struct Pool {
  size_t bytes = 0;
  bool asked = false;  // by a flag: touched at start
  std::string reason;  // "half of the 8.00 GiB available; ..."
};
Result<Pool> choose_pool(const MemoryFlags& flags, const PoolNumbers& numbers);

// The largest arena that fits `room` bytes with the records of its blocks.
size_t arena_in(const KvLayout& layout, size_t room);

struct ServePlan {
  EngineOptions options;  // complete
  MemoryPlan plan;
  Pool pool;
  std::vector<std::string> notes;     // for the log: how the length was fitted
  std::vector<std::string> warnings;  // likewise
};
// Errors: nothing fits; the length asked for does not fit, with the largest that does.
Result<ServePlan> plan_serve(const GgufFile& file, const ServeFlags& flags);

// As `kvarto inspect` shows it, a line a purpose.
std::string plan_table(const MemoryPlan& plan);
// "11.47": bytes / 2^30 as vLLM prints them.
std::string gib(double bytes);

}  // namespace kvarto
