#include "server/metrics_scrape.h"

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace kvarto {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::map<std::string, std::string>;
using S = MetricsSnapshot;

constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;

double ratio(size_t part, size_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// A series. Rows of one family follow each other, and the first one has its help.
struct Row {
  MetricType type;
  std::string_view name, help, label, label_value;
  double (*value)(const S&);
};

#define TOTAL(expression) [](const S& s) { return static_cast<double>(s.expression); }
#define ALWAYS(number) [](const S&) { return double{number}; }

constexpr Row kEngineRows[] = {
    // --- vLLM's names
    {kGauge, "vllm:num_requests_running", "Requests in the batch that is being computed.", "", "",
     TOTAL(engine.running)},
    {kGauge, "vllm:num_requests_waiting", "Requests that wait to be scheduled.", "", "", TOTAL(engine.waiting)},
    {kGauge, "vllm:num_requests_waiting_by_reason", "Requests that wait to be scheduled, by what they wait for.",
     "reason", "capacity", TOTAL(engine.waiting)},
    {kGauge, "vllm:num_requests_waiting_by_reason", "", "reason", "deferred", ALWAYS(0)},
    {kGauge, "vllm:kv_cache_usage_perc", "Share of the KV cache that running requests hold; 1 means all of it.", "", "",
     TOTAL(engine.kv.usage())},
    {kGauge, "vllm:engine_sleep_state", "1 for the state the engine is in; it never sleeps.", "sleep_state", "awake",
     ALWAYS(1)},
    {kGauge, "vllm:engine_sleep_state", "", "sleep_state", "weights_offloaded", ALWAYS(0)},
    {kGauge, "vllm:engine_sleep_state", "", "sleep_state", "discard_all", ALWAYS(0)},
    {kCounter, "vllm:external_prefix_cache_queries_total", "Tokens looked up in lower tiers.", "", "", ALWAYS(0)},
    {kCounter, "vllm:external_prefix_cache_hits_total", "Tokens found in lower tiers.", "", "", ALWAYS(0)},
    {kCounter, "vllm:num_preemptions_total", "Samples that had to give their blocks to others.", "", "",
     TOTAL(engine.preemptions)},
    {kCounter, "vllm:generation_tokens_total", "Tokens generated.", "", "", TOTAL(engine.generated_tokens)},

    // --- the engine
    {kCounter, "kvarto:steps_total", "Steps computed.", "", "", TOTAL(engine.steps)},
    {kCounter, "kvarto:computed_prompt_tokens_total", "Prompt tokens computed, those of resumed requests included.", "",
     "", TOTAL(engine.computed_prompt_tokens)},
    {kCounter, "kvarto:cut_passes_total",
     "Passes of prompts that were computed a few layers at a time, in several steps beside decodes.", "", "",
     TOTAL(engine.cut_passes)},
    {kGauge, "kvarto:queued_tokens", "Prompt tokens of requests that were never scheduled yet.", "", "",
     TOTAL(engine.queued_tokens)},
    {kCounter, "kvarto:preempted_tokens_total", "Computed tokens that preempted samples held.", "", "",
     TOTAL(engine.preempted_tokens)},
    {kCounter, "kvarto:resumes_total",
     "Preempted samples that run again, by how they were restored: all from the cache, a part of it, computed anew.",
     "restored", "from_cache", TOTAL(engine.resumes_from_cache)},
    {kCounter, "kvarto:resumes_total", "", "restored", "in_part", TOTAL(engine.resumes_in_part)},
    {kCounter, "kvarto:resumes_total", "", "restored", "recomputed", TOTAL(engine.resumes_recomputed)},
    {kCounter, "kvarto:resume_cached_tokens_total", "Tokens that resumed samples found in the cache again.", "", "",
     TOTAL(engine.resume_cached_tokens)},
    {kCounter, "kvarto:recomputed_tokens_total", "Tokens computed again after preemptions; no part of prefix hits.", "",
     "", TOTAL(engine.recomputed_tokens)},
    {kCounter, "kvarto:internal_errors_total", "Steps that failed by a bug of this program.", "", "",
     TOTAL(engine.internal_errors)},
    {kCounter, "kvarto:watchdog_pushes_total", "Times that the watchdog freed a scheduler that was stuck.", "", "",
     TOTAL(watchdog_pushes)},
    {kCounter, "kvarto:saturated_kv_values_total", "Keys and values beyond the range of a half float.", "", "",
     TOTAL(engine.saturated_kv_values)},

    // --- the KV cache
    {kGauge, "kvarto:kv_bytes", "Bytes of the KV arena by state; together they are the arena.", "state", "free",
     TOTAL(engine.kv.free_bytes)},
    {kGauge, "kvarto:kv_bytes", "", "state", "active", TOTAL(engine.kv.active_bytes)},
    {kGauge, "kvarto:kv_bytes", "", "state", "cached", TOTAL(engine.kv.cached_bytes)},
    {kGauge, "kvarto:kv_bytes", "", "state", "remainder", TOTAL(engine.kv.slab_remainder_bytes)},
    {kGauge, "kvarto:kv_live_bytes", "Of the active bytes, those that hold a token which a request can still see.", "",
     "", TOTAL(engine.kv.live_bytes)},
    {kGauge, "kvarto:kv_token_occupancy",
     "Share of the active bytes that hold a live token; the rest is empty places in blocks.", "", "",
     [](const S& s) { return ratio(s.engine.kv.live_bytes, s.engine.kv.active_bytes); }},
    {kGauge, "kvarto:kv_balanced", "1: free, active, cached and remaining bytes are the arena. 0 is a bug.", "", "",
     TOTAL(engine.kv_balanced)},
    {kGauge, "kvarto:kv_blocks_stale_seconds",
     "How old the numbers of single blocks are: 0 unless a step takes so long that the last known ones have to do.", "",
     "", TOTAL(blocks_age_us / 1e6)},
    {kCounter, "kvarto:kv_replaced_blocks_total", "Cached blocks given up for new ones.", "", "",
     TOTAL(engine.kv.replaced_blocks)},
    {kCounter, "kvarto:kv_window_blocks_freed_total", "Blocks given back because a window moved on.", "", "",
     TOTAL(engine.kv.window_blocks_freed)},
    {kCounter, "kvarto:kv_copied_tails_total", "Open blocks copied for samples that share a prompt.", "", "",
     TOTAL(engine.kv.copied_tails)},

    // --- the server
    {kGauge, "kvarto:resident_memory_bytes", "Memory of this process that lies in RAM.", "", "",
     TOTAL(process.resident_bytes)},
    {kGauge, "kvarto:http_open_connections", "Connections open now.", "", "", TOTAL(http.open)},
    {kCounter, "kvarto:http_connections_total", "Connections accepted.", "", "", TOTAL(http.accepted)},
    {kCounter, "kvarto:http_requests_total", "HTTP requests read.", "", "", TOTAL(http.requests)},
    {kCounter, "kvarto:http_refused_total", "Connections and requests that broke HTTP or a limit of it.", "", "",
     TOTAL(http.refused)},
    {kCounter, "kvarto:http_dropped_slow_total", "Connections closed because the client read too slowly.", "", "",
     TOTAL(http.dropped_slow)},
    {kCounter, "kvarto:ignored_fields_total", "Unknown fields of requests.", "", "", TOTAL(ignored_fields)},
    {kCounter, "kvarto:prefix_breakers_total", "Prompts that parted from a known one after a common beginning.", "", "",
     TOTAL(prefix_breakers)},
    {kCounter, "kvarto:volatile_text_saved_tokens_total",
     "Tokens of system prompts that --volatile-text moved in front of what changes, where the cache can find them.", "",
     "", TOTAL(volatile_saved_tokens)},
    {kCounter, "kvarto:kv_event_batches_total", "Batches of KV events sent.", "", "", TOTAL(kv_events.batches)},
    {kCounter, "kvarto:kv_events_total", "KV events sent.", "", "", TOTAL(kv_events.events)},
    {kCounter, "kvarto:kv_event_bytes_total", "Bytes of KV events sent.", "", "", TOTAL(kv_events.bytes)},
    {kCounter, "kvarto:kv_event_dropped_batches_total",
     "Batches of KV events that were not sent: the queue was full, or ZeroMQ refused them.", "", "",
     TOTAL(kv_events.dropped_batches)},
    {kCounter, "kvarto:kv_event_replays_total", "Replays of KV events that listeners asked for.", "", "",
     TOTAL(kv_events.replays)},
    {kCounter, "kvarto:kv_event_replayed_batches_total", "Batches of KV events sent again.", "", "",
     TOTAL(kv_events.replayed_batches)},
    {kCounter, "kvarto:kv_event_bad_requests_total", "What came to the replay socket and was no request.", "", "",
     TOTAL(kv_events.bad_requests)},
    {kCounter, "kvarto:turn_memory_lookups_total", "Prompts looked up among finished turns.", "", "",
     TOTAL(turns.lookups)},
    {kCounter, "kvarto:turn_memory_hits_total", "Prompts that hold a finished turn word for word.", "", "",
     TOTAL(turns.hits)},
    {kCounter, "kvarto:turn_memory_refused_total", "Finished turns that were found and could not be used.", "", "",
     TOTAL(turns.refused)},
    {kCounter, "kvarto:turn_memory_spliced_tokens_total", "Tokens that prompts got from finished turns.", "", "",
     TOTAL(turns.tokens_spliced)},
    {kGauge, "kvarto:turn_memory_turns", "Finished turns remembered.", "", "", TOTAL(turns.turns)},
    {kGauge, "kvarto:turn_memory_chats", "Chats that they belong to.", "", "", TOTAL(turns.chats)},
    {kGauge, "kvarto:turn_memory_bytes", "Memory that they take.", "", "", TOTAL(turns.bytes)},
    {kCounter, "kvarto:trace_requests_total", "Requests written to the trace that --record asks for.", "", "",
     TOTAL(trace.written)},
    {kCounter, "kvarto:trace_dropped_requests_total",
     "Requests missing in it: the disk refused them, or took too long.", "", "", TOTAL(trace.dropped)},
};

// Under the names and without the labels that Prometheus' client libraries have.
constexpr Row kProcessRows[] = {
    {kGauge, "process_resident_memory_bytes", "Resident memory size in bytes.", "", "", TOTAL(process.resident_bytes)},
    {kGauge, "process_virtual_memory_bytes", "Virtual memory size in bytes.", "", "", TOTAL(process.virtual_bytes)},
    {kCounter, "process_cpu_seconds_total", "User and system CPU time in seconds.", "", "", TOTAL(process.cpu_seconds)},
    {kGauge, "process_start_time_seconds", "Start of the process, in seconds since 1970.", "", "",
     TOTAL(process.start_seconds)},
    {kGauge, "process_open_fds", "Open file descriptors.", "", "", TOTAL(process.open_fds)},
    {kGauge, "process_max_fds", "Most file descriptors that may be open.", "", "", TOTAL(process.max_fds)},
};

constexpr Row kHiddenRows[] = {
    {kGauge, "vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc.", "", "", TOTAL(engine.kv.usage())},
};

#undef TOTAL
#undef ALWAYS

ClientMetric series(MetricType type, const Labels& labels, double value) {
  ClientMetric metric;
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  (type == kCounter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

MetricFamily family(MetricType type, std::string_view name, std::string_view help) {
  return {.name = std::string(name), .help = std::string(help), .type = type, .metric = {}};
}

Labels with(Labels labels, std::string_view name, std::string_view value) {
  if (!name.empty()) labels[std::string(name)] = value;
  return labels;
}

template <size_t kCount>
void add_rows(std::vector<MetricFamily>& out, const Row (&rows)[kCount], const S& snapshot, const Labels& labels) {
  for (const Row& row : rows) {
    if (out.empty() || out.back().name != row.name) out.push_back(family(row.type, row.name, row.help));
    const Labels all = with(labels, row.label, row.label_value);
    out.back().metric.push_back(series(row.type, all, row.value(snapshot)));
  }
}

void add_capacity(std::vector<MetricFamily>& out, const S& s, const ScrapeOptions& options) {
  const auto add = [&](std::string_view name, std::string_view help, size_t bytes) {
    const size_t tokens = options.kv_bytes_per_token == 0 ? 0 : bytes / options.kv_bytes_per_token;
    out.push_back(family(kGauge, name, help));
    out.back().metric.push_back(series(kGauge, options.labels, static_cast<double>(tokens)));
  };
  add("kvarto:kv_capacity_tokens", "Tokens that the KV arena holds in the long run.", s.engine.kv.arena_bytes);
  add("kvarto:kv_live_tokens", "Tokens that the live bytes come to.", s.engine.kv.live_bytes);
}

void add_memory(std::vector<MetricFamily>& out, const S& s, const Labels& labels) {
  MetricFamily now = family(kGauge, "kvarto:memory_bytes", "Bytes allocated, by purpose.");
  MetricFamily peak = family(kGauge, "kvarto:memory_peak_bytes", "The most bytes there ever were, by purpose.");
  MetricFamily step = family(kGauge, "kvarto:memory_peak_step", "The step that caused this peak; 0: loading did.");
  for (const MemoryUse& use : s.memory) {
    const Labels all = with(labels, "tag", use.tag);
    now.metric.push_back(series(kGauge, all, static_cast<double>(use.bytes)));
    peak.metric.push_back(series(kGauge, all, static_cast<double>(use.peak_bytes)));
    step.metric.push_back(series(kGauge, all, static_cast<double>(use.peak_step)));
  }
  out.insert(out.end(), {std::move(now), std::move(peak), std::move(step)});
}

std::string_view state_name(BlockCell::State state) {
  switch (state) {
    case BlockCell::State::free:
      return "free";
    case BlockCell::State::open:
      return "open";
    case BlockCell::State::active:
      return "active";
    case BlockCell::State::cached:
      return "cached";
  }
  return "";
}
constexpr BlockCell::State kHolding[] = {BlockCell::State::open, BlockCell::State::active, BlockCell::State::cached};

// Blocks by state and group; those that more than one sequence holds.
void add_blocks(std::vector<MetricFamily>& out, const S& s, const ScrapeOptions& options) {
  MetricFamily blocks = family(kGauge, "kvarto:kv_blocks", "Blocks of the KV arena, by state and group of layers.");
  const auto add = [&](std::string_view group, std::string_view kind, std::string_view state, auto count) {
    const Labels all = with(with(with(options.labels, "group", group), "kind", kind), "state", state);
    blocks.metric.push_back(series(kGauge, all, static_cast<double>(count)));
  };
  for (uint32_t g = 0; g < options.groups.size(); ++g) {
    for (const BlockCell::State state : kHolding) {
      add(std::to_string(g), group_kind_name(options.groups[g]), state_name(state),
          std::ranges::count_if(s.blocks, [&](const BlockCell& b) { return b.group == g && b.state == state; }));
    }
  }
  add("none", "none", "free", std::ranges::count(s.blocks, BlockCell::State::free, &BlockCell::state));
  out.push_back(std::move(blocks));
  out.push_back(family(kGauge, "kvarto:kv_shared_blocks", "Blocks that more than one sequence holds."));
  const auto shared = std::ranges::count_if(s.blocks, [](const BlockCell& b) { return b.references > 1; });
  out.back().metric.push_back(series(kGauge, options.labels, static_cast<double>(shared)));
}

// How old the blocks are that there are now: not a history, so without rate() around it.
void add_ages(std::vector<MetricFamily>& out, const S& s, const ScrapeOptions& options) {
  const auto histogram = [&](BlockCell::State state, uint64_t BlockCell::*time, const Labels& labels) {
    prometheus::Histogram counts(options.age_bounds);
    for (const BlockCell& block : s.blocks) {
      if (block.state == state) counts.Observe(static_cast<double>(block.*time) / 1e6);
    }
    ClientMetric metric = counts.Collect();
    metric.label = series(kGauge, labels, 0).label;
    return metric;
  };
  out.push_back(family(MetricType::Histogram, "kvarto:kv_block_age_seconds",
                       "Blocks there are now, by the time since their memory was taken."));
  for (const BlockCell::State state : kHolding) {
    out.back().metric.push_back(histogram(state, &BlockCell::age_us, with(options.labels, "state", state_name(state))));
  }
  out.push_back(family(MetricType::Histogram, "kvarto:kv_block_idle_seconds",
                       "Cached blocks there are now, by the time since they were last used."));
  out.back().metric.push_back(histogram(BlockCell::State::cached, &BlockCell::idle_us, options.labels));
}

void add_cache_config(std::vector<MetricFamily>& out, const S& s, const ScrapeOptions& options) {
  Labels labels = options.cache_config;
  labels["num_gpu_blocks"] = std::to_string(s.engine.kv.blocks_total);
  out.push_back(family(kGauge, "vllm:cache_config_info", "The KV cache's configuration, in the labels."));
  out.back().metric.push_back(series(kGauge, labels, 1));
}

}  // namespace

std::vector<MetricFamily> scraped_families(const MetricsSnapshot& snapshot, const ScrapeOptions& options) {
  std::vector<MetricFamily> out;
  add_rows(out, kEngineRows, snapshot, options.labels);
  add_rows(out, kProcessRows, snapshot, {});
  if (options.hidden_metrics) add_rows(out, kHiddenRows, snapshot, options.labels);
  add_capacity(out, snapshot, options);
  add_memory(out, snapshot, options.labels);
  add_blocks(out, snapshot, options);
  add_ages(out, snapshot, options);
  add_cache_config(out, snapshot, options);
  return out;
}

}  // namespace kvarto
