// Metrics: what GET /metrics tells, in vLLM's names, labels, units and buckets, and under `kvarto:` what only Kvarto
// has. Two sources: events, told when they happen (engine's steps, tokens, ends of requests), and a snapshot of
// everybody's running totals that the caller takes for each scrape. Reads no clock: times come with the events, all of
// one steady clock (the engine's, which steady_us() is, too). Owned by the server; calls from any thread unless said
// otherwise. prometheus-cpp stays behind this header.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"
#include "kvarto/engine.h"
#include "server/kv_event_publisher.h"
#include "server/process_numbers.h"
#include "server/serve_options.h"
#include "server/trace_recorder.h"
#include "server/turn_memory.h"

namespace kvarto {

struct MetricsOptions {
  std::string model_name;       // the first served name
  bool kv_block_lives = false;  // --kv-cache-metrics: histograms of block_life()
  bool hidden_metrics = false;  // --show-hidden-metrics-for-version: names that vLLM has dropped and people still graph
  std::map<std::string, std::vector<double>> histogram_buckets = {};  // --custom-histogram-buckets, by family
  CacheConfigOptions cache_config = {};
};

// Families and bounds that --custom-histogram-buckets may name. The error says which one is wrong and what is known.
Status check_histogram_buckets(const std::map<std::string, std::vector<double>>& buckets);

// Running totals at one moment. The engine's thread gives the first two, between two steps.
struct MetricsSnapshot {
  EngineStats engine;
  std::vector<BlockCell> blocks = {};  // KvCache::block_map()
  uint64_t blocks_age_us = 0;          // since the blocks were like that; not 0 while a long step is being computed
  std::vector<MemoryUse> memory = {};  // Engine::memory()
  ProcessNumbers process;              // read_process_numbers()
  HttpServerCounts http;
  TurnMemoryCounts turns;
  TraceCounts trace;
  KvEventPublisher::Counts kv_events;  // 0 when none are published
  uint64_t watchdog_pushes = 0;        // Health::pushes()
  uint64_t ignored_fields = 0;         // of requests
  uint64_t prefix_breakers = 0;        // near misses seen
  uint64_t volatile_saved_tokens = 0;
};

// A request that the engine has done with, in whatever way.
struct FinishedRequest {
  const RequestResult& result;
  uint64_t arrival_us = 0;  // at the HTTP door
  uint64_t end_us = 0;      // now
  bool stream = false;      // first_byte() is told of its first token
  uint32_t n = 1;
  uint32_t max_tokens = 0;  // what it was allowed
};

enum class Rejection : uint8_t { queued_requests, queued_tokens, text_queue };
enum class AbortState : uint8_t { queued, prefill, decode };

// Numbers of the stats line at one moment; see stats_line.h.
struct StatsNumbers {
  uint64_t computed_prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  uint32_t running = 0, waiting = 0;
  double kv_usage = 0;                                      // 0 to 1
  uint64_t recent_query_tokens = 0, recent_hit_tokens = 0;  // of the last 1000 requests that were admitted
};

class Metrics {
 public:
  Metrics(const MetricsOptions& options, const EngineInfo& info, const EngineOptions& engine, const KvLayout& layout);
  ~Metrics();

  // --- events
  // For Engine::observe: the engine's thread. Allocates nothing.
  void step(const StepReport& report);
  // A later token of a sample, so long after the one before; see TokenGaps. Allocates nothing.
  void token_gap(double seconds);
  // For EngineOptions::on_kv_life: the engine's thread.
  void block_life(const BlockLife& life);
  // The first bytes that show output of a streamed request were written. Once per request (prompt).
  void first_byte(uint64_t arrival_us, uint64_t now_us);
  // Once per request (prompt) that the engine had accepted. One that ended as cancelled counts as aborted, in the state
  // that its times tell, and is in no histogram but that of first tokens, if there was one.
  void finished(const FinishedRequest& request);
  // Given up before the engine had it: always `queued`.
  void aborted(AbortState state);
  void rejected(Rejection reason);
  // The prefix cache was reset: the hit rate of the stats line starts anew.
  void forget_recent();

  // --- what is told
  std::string text(const MetricsSnapshot& snapshot) const;  // text/plain; version=0.0.4
  StatsNumbers stats_numbers(const EngineStats& stats) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Feeds token_gap() with the tokens of one request: call it with every TokenEvent. The engine's thread.
class TokenGaps {
 public:
  TokenGaps(Metrics& metrics, uint32_t n) : metrics_(&metrics), last_us_(n) {}
  void operator()(const TokenEvent& event) {
    if (!event.token) return;
    uint64_t& last = last_us_[event.sample];
    if (last > 0) metrics_->token_gap(static_cast<double>(event.time_us - last) / 1e6);
    last = event.time_us;
  }

 private:
  Metrics* metrics_;
  std::vector<uint64_t> last_us_;  // [n]; 0: no token yet
};

}  // namespace kvarto
