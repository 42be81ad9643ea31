// DashboardState: what GET /dashboard/state tells the page, once a second. Every number that /metrics has, too, is
// taken from the very text of one scrape, whose id the state carries. Plain data and a pure function; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/kv_cache.h"
#include "kvarto/plan.h"
#include "server/breakers.h"
#include "server/recent_requests.h"

namespace kvarto {

inline constexpr size_t kMostMapCells = 10'000;

struct DashboardState {
  uint64_t scrape = 0;                 // ScrapeRing::add(metrics_text)
  std::string_view metrics_text = {};  // Metrics::text()
  uint64_t now_us = 0;                 // the engine's steady clock

  std::string model = {}, version = {};
  uint32_t block_tokens = 16;
  uint32_t max_model_len = 0;
  bool chat = true;  // the model has a chat template
  std::span<const KvGroup> groups = {};
  std::span<const BlockCell> blocks = {};  // of the snapshot that the text was made from
  MemoryPlan plan = {};
  std::vector<RequestRow> requests = {};  // RecentRequests::rows()
  Percentiles ttft_ms = {}, tpot_ms = {};
  std::vector<PrefixBreaker> breakers = {};  // PrefixBreakers::top()
  uint64_t near_misses = 0;
  bool show_text = false;  // --dashboard-text, and the request had a valid key (so there is one)
};

// JSON:
//   series    {"kvarto:kv_bytes{state=\"free\"}": 123, ...}: all of the text but histogram buckets, engine and
//   model_name
//             left out of the labels
//   blocks    a character per cell in each of states (. free, o open, a active, c cached; upper case: can be found),
//             groups (0-9 a-z, + beyond, . free), sharing (0-9: references, 9 or more), heat (0 cold - 9, . free); a
//             cell is `stride` blocks and shows the busiest
//   requests, latency, plan, breakers: as named; what is not known is null
std::string dashboard_state(const DashboardState& state);

// How warm a block is: 9 in use or used within a second, one less each time the idle time doubles.
char block_heat(const BlockCell& cell);

}  // namespace kvarto
