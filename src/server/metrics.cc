#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <utility>

#include "server/metric_buckets.h"
#include "server/metric_text.h"
#include "server/metrics_scrape.h"
#include "server/stats_line.h"

namespace kvarto {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = prometheus::Labels;

constexpr size_t kRecentRequests = 1000;
constexpr MissReason kMissReasons[] = {MissReason::none,    MissReason::no_match, MissReason::shorter_than_block,
                                       MissReason::evicted, MissReason::salt,     MissReason::disabled};
constexpr std::string_view kAbortStates[] = {"queued", "prefill", "decode"};  // AbortState
constexpr std::string_view kRejections[] = {"max_num_queued_reqs", "max_num_queued_tokens", "text_queue"};  // Rejection
constexpr std::string_view kOutcomes[] = {"stop", "length", "abort", "error", "repetition"};                // Outcome
constexpr std::string_view kOtherTiers[] = {"host", "p2p", "disk", "external_unspecified"};
enum Outcome : size_t { kStop, kLength, kAbort, kError };

double seconds_between(uint64_t from_us, uint64_t to_us) {
  return to_us > from_us ? static_cast<double>(to_us - from_us) / 1e6 : 0.0;
}

// One for all samples of a request: the worst that happened to any.
Outcome outcome(const RequestResult& result) {
  const auto any = [&](FinishReason reason) {
    return std::ranges::find(result.samples, reason, &SampleResult::finish) != result.samples.end();
  };
  if (result.error || any(FinishReason::error)) return kError;
  if (any(FinishReason::cancelled)) return kAbort;
  return any(FinishReason::length) ? kLength : kStop;
}

size_t longest_output(const RequestResult& result) {
  size_t longest = 0;
  for (const SampleResult& sample : result.samples) longest = std::max(longest, sample.tokens.size());
  return longest;
}

// Series that stand there with 0 until something happens.
class Registrar {
 public:
  Registrar(prometheus::Registry& registry, Labels labels) : registry_(registry), labels_(std::move(labels)) {}

  Counter* counter(const char* name, const char* help, const char* label = nullptr, std::string_view value = {}) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
    return &family.Add(with(label, value));
  }
  template <size_t kCount>
  std::array<Counter*, kCount> counters(const char* name, const char* help, const char* label,
                                        const std::string_view (&values)[kCount]) {
    std::array<Counter*, kCount> made;
    for (size_t i = 0; i < kCount; ++i) made[i] = counter(name, help, label, values[i]);
    return made;
  }
  Gauge* gauge(const char* name, const char* help) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels_);
  }
  Histogram* histogram(const char* name, const char* help, const std::vector<double>& bounds) {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels_, bounds);
  }

 private:
  Labels with(const char* label, std::string_view value) const {
    Labels labels = labels_;
    if (label != nullptr) labels[label] = value;
    return labels;
  }

  prometheus::Registry& registry_;
  const Labels labels_;
};

Labels common_labels(const MetricsOptions& options) { return {{"engine", "0"}, {"model_name", options.model_name}}; }

// As Python writes them.
std::string python_bool(bool value) { return value ? "True" : "False"; }

Labels cache_config(const MetricsOptions& options, const EngineInfo& info, const EngineOptions& engine,
                    const KvLayout& layout) {
  const KvCapacity capacity =
      kv_capacity(layout, info.kv_arena_bytes, info.max_model_len, engine.max_num_batched_tokens);
  char concurrency[32];
  std::snprintf(concurrency, sizeof concurrency, "%.2f", capacity.concurrency);
  const std::string block = std::to_string(layout.block_tokens());
  const auto window = std::ranges::find(layout.groups(), GroupKind::window, &KvGroup::kind);
  const CacheConfigOptions& asked = options.cache_config;
  const auto count = [](const auto& given) { return given ? std::to_string(*given) : "None"; };
  return {
      {"engine", "0"},
      {"block_size", block},
      {"user_specified_block_size", python_bool(asked.user_specified_block_size)},
      {"_block_size_resolved", "True"},
      {"hash_block_size", block},
      {"effective_attention_block_size", block},
      {"cache_hit_alignment_tokens", block},
      {"prefix_match_unit", "None"},
      {"kv_cache_layout", "None"},
      {"cache_dtype", info.kv_dtype},
      {"gpu_memory_utilization", asked.gpu_memory_utilization ? metric_value(*asked.gpu_memory_utilization) : "None"},
      {"kv_cache_memory_bytes", count(asked.kv_cache_memory_bytes)},
      {"kv_cache_size_tokens", std::to_string(capacity.tokens)},
      {"kv_cache_max_concurrency", concurrency},
      {"enable_prefix_caching", python_bool(engine.enable_prefix_caching)},
      {"prefix_caching_hash_algo", "sha256_cbor"},
      {"prefix_cache_retention_interval", "0"},
      {"kv_cache_dtype_skip_layers", "[]"},
      {"sliding_window", window != layout.groups().end() ? std::to_string(window->window) : "None"},
      {"is_attention_free", "False"},
      {"num_gpu_blocks_override", count(asked.num_gpu_blocks_override)},
      {"num_cpu_blocks", "None"},
      {"simple_cpu_offload_num_blocks", "None"},
      {"kv_offloading_size", "None"},
      {"kv_offloading_backend", "native"},
      {"kv_sharing_fast_prefill", "False"},
      {"swa_bounded_replay", "False"},
      // Of recurrent layers, which there are none of.
      {"mamba_page_size_padded", "None"},
      {"skip_page_size_padded", "None"},
      {"mamba_block_size", "None"},
      {"mamba_cache_dtype", "auto"},
      {"mamba_ssm_cache_dtype", "auto"},
      {"mamba_cache_mode", "none"},
      {"enable_mamba_shared_prefix_checkpoint", "False"},
      {"replayssm_buffer_len", "None"},
      {"use_replayssm", "False"},
      {"use_kda_recoverssm", "False"}};
}

ScrapeOptions scrape_options(const MetricsOptions& options, const EngineInfo& info, const EngineOptions& engine,
                             const KvLayout& layout) {
  ScrapeOptions made{.labels = common_labels(options),
                     .cache_config = cache_config(options, info, engine, layout),
                     .groups = {},
                     .kv_bytes_per_token = layout.bytes_per_token(),
                     .age_bounds = histogram_bounds("kv_cache_residency", options.histogram_buckets, 0),
                     .hidden_metrics = options.hidden_metrics};
  for (const KvGroup& group : layout.groups()) made.groups.push_back(group.kind);
  return made;
}

// Queries and hits of the last requests.
struct Recent {
  std::mutex mutex;
  std::array<std::pair<uint64_t, uint64_t>, kRecentRequests> ring{};
  size_t next = 0;
  uint64_t queries = 0, hits = 0;

  void add(uint64_t query_tokens, uint64_t hit_tokens) {
    auto& [old_queries, old_hits] = ring[next];
    queries += query_tokens - old_queries;
    hits += hit_tokens - old_hits;
    ring[next] = {query_tokens, hit_tokens};
    next = (next + 1) % kRecentRequests;
  }
  void clear() {
    ring.fill({});
    queries = hits = 0;
  }
};

}  // namespace

struct Metrics::Impl {
  Impl(const MetricsOptions& options, const EngineInfo& info, const EngineOptions& engine, const KvLayout& layout);
  void make_counters(Registrar& all, Registrar& without_engine, bool hidden);
  void make_histograms(Registrar& all, const MetricsOptions& options, uint32_t max_model_len);
  void observe_times(const FinishedRequest& request);
  void observe_sizes(const FinishedRequest& request);

  const ScrapeOptions scrape;
  prometheus::Registry registry;
  // The registry's; the last ones are null where nobody asked for them.
  Counter *prompt_tokens, *computed_prompt_tokens, *cached_prompt_tokens, *cached_by_hit, *cached_on_device;
  Counter *queries, *hits, *hit_requests;
  std::array<Counter*, std::size(kMissReasons)> misses, missed_tokens;
  std::array<Counter*, std::size(kOutcomes)> outcomes;
  std::array<Counter*, std::size(kRejections)> rejections;
  std::array<Counter*, std::size(kAbortStates)> aborts;
  Gauge *peak_active_bytes, *peak_active_step;
  Histogram *first_token, *token_gap, *token_time, *end_to_end, *queue_time, *prefill_time, *decode_time,
      *inference_time;
  Histogram *prompt_sizes, *output_sizes, *longest_outputs, *max_tokens, *samples, *computed_sizes, *preemptions;
  Histogram* step_tokens;
  Histogram *block_lifetime = nullptr, *block_idle = nullptr, *block_gap = nullptr;
  Counter *old_queries = nullptr, *old_hits = nullptr;
  Histogram* old_token_gap = nullptr;
  Recent recent;
};

Metrics::Impl::Impl(const MetricsOptions& options, const EngineInfo& info, const EngineOptions& engine,
                    const KvLayout& layout)
    : scrape(scrape_options(options, info, engine, layout)) {
  Registrar all(registry, common_labels(options));
  Registrar without_engine(registry, {{"model_name", options.model_name}});
  make_counters(all, without_engine, options.hidden_metrics);
  make_histograms(all, options, info.max_model_len);
}

void Metrics::Impl::make_counters(Registrar& all, Registrar& without_engine, bool hidden) {
  prompt_tokens = all.counter("vllm:prompt_tokens_total", "Prompt tokens of scheduled requests, cached ones included.");
  constexpr char kSource[] = "vllm:prompt_tokens_by_source_total";
  constexpr char kSourceHelp[] = "Prompt tokens of scheduled requests, by where their KV came from.";
  computed_prompt_tokens = all.counter(kSource, kSourceHelp, "source", "local_compute");
  cached_by_hit = all.counter(kSource, kSourceHelp, "source", "local_cache_hit");
  all.counter(kSource, kSourceHelp, "source", "external_kv_transfer");
  cached_prompt_tokens = all.counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the cache.");
  constexpr char kTier[] = "vllm:prompt_tokens_cached_by_source_total";
  constexpr char kTierHelp[] = "Prompt tokens found in the cache, by tier.";
  cached_on_device = all.counter(kTier, kTierHelp, "source", "device");
  all.counters(kTier, kTierHelp, "source", kOtherTiers);
  queries =
      all.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache, once per request.");
  hits = all.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache, once per request.");
  outcomes = all.counters("vllm:request_success_total", "Requests that ended, by how; abort is no success.",
                          "finished_reason", kOutcomes);
  rejections = without_engine.counters("vllm:admission_rejections_total", "Requests refused because of a full queue.",
                                       "reason", kRejections);
  aborts = all.counters("kvarto:aborted_requests_total", "Requests given up by their client, by how far they were.",
                        "state", kAbortStates);
  hit_requests = all.counter("kvarto:prefix_cache_hit_requests_total", "Requests that found cached tokens.");
  for (size_t i = 0; i < std::size(kMissReasons); ++i) {
    const std::string_view reason = miss_reason_name(kMissReasons[i]);
    misses[i] =
        all.counter("kvarto:prefix_cache_requests_total",
                    "Scheduled requests, by why they found no more in the prefix cache.", "miss_reason", reason);
    missed_tokens[i] =
        all.counter("kvarto:prefix_cache_missed_tokens_total",
                    "Prompt tokens that were not found in the prefix cache, by the reason.", "miss_reason", reason);
  }
  peak_active_bytes = all.gauge("kvarto:kv_active_peak_bytes", "The most bytes of KV that were ever in use.");
  peak_active_step = all.gauge("kvarto:kv_active_peak_step", "The step after which they were.");
  if (!hidden) return;
  old_queries = all.counter("vllm:gpu_prefix_cache_queries_total", "Old name of vllm:prefix_cache_queries_total.");
  old_hits = all.counter("vllm:gpu_prefix_cache_hits_total", "Old name of vllm:prefix_cache_hits_total.");
}

void Metrics::Impl::make_histograms(Registrar& all, const MetricsOptions& options, uint32_t max_model_len) {
  const auto make = [&](const char* name, const char* family, const char* help) {
    return all.histogram(name, help, histogram_bounds(family, options.histogram_buckets, max_model_len));
  };
  first_token =
      make("vllm:time_to_first_token_seconds", "time_to_first_token", "From a request's arrival to its first output.");
  token_gap = make("vllm:inter_token_latency_seconds", "inter_token_latency",
                   "Between two output tokens of a sample, for each but the first.");
  token_time = make("vllm:request_time_per_output_token_seconds", "inter_token_latency",
                    "Mean time of a request's output tokens after the first.");
  end_to_end = make("vllm:e2e_request_latency_seconds", "request_latency", "From a request's arrival to its end.");
  queue_time = make("vllm:request_queue_time_seconds", "request_latency", "Spent waiting to be scheduled first.");
  prefill_time = make("vllm:request_prefill_time_seconds", "request_latency", "From first scheduled to first token.");
  decode_time = make("vllm:request_decode_time_seconds", "request_latency", "From the first token to the last.");
  inference_time =
      make("vllm:request_inference_time_seconds", "request_latency", "From first scheduled to last token.");
  prompt_sizes = make("vllm:request_prompt_tokens", "request_tokens", "Prompt tokens per request.");
  output_sizes = make("vllm:request_generation_tokens", "request_tokens", "Generated tokens per request.");
  longest_outputs = make("vllm:request_max_num_generation_tokens", "request_tokens",
                         "Generated tokens of a request's longest sample.");
  max_tokens = make("vllm:request_params_max_tokens", "request_tokens", "Tokens that a request might generate.");
  samples = make("vllm:request_params_n", "request_params_n", "Samples asked for per request.");
  computed_sizes = make("vllm:request_prefill_kv_computed_tokens", "request_tokens",
                        "Prompt tokens per request that were not in the cache.");
  preemptions = make("vllm:request_num_preemptions", "request_num_preemptions", "Preemptions per request.");
  step_tokens = make("vllm:iteration_tokens_total", "iteration_tokens", "Tokens computed and generated per step.");
  if (options.kv_block_lives) {
    block_lifetime = make("vllm:kv_block_lifetime_seconds", "kv_cache_residency",
                          "From taking a block's memory to replacing the block (of a sample of blocks).");
    block_idle = make("vllm:kv_block_idle_before_evict_seconds", "kv_cache_residency",
                      "From a block's last use to replacing it (of a sample of blocks).");
    block_gap = make("vllm:kv_block_reuse_gap_seconds", "kv_cache_residency",
                     "Between two uses of a block (of a sample of blocks).");
  }
  if (options.hidden_metrics) {
    old_token_gap = make("vllm:time_per_output_token_seconds", "inter_token_latency",
                         "Old name of vllm:inter_token_latency_seconds.");
  }
}

Metrics::Metrics(const MetricsOptions& options, const EngineInfo& info, const EngineOptions& engine,
                 const KvLayout& layout)
    : impl_(std::make_unique<Impl>(options, info, engine, layout)) {}
Metrics::~Metrics() = default;

// --- events

void Metrics::step(const StepReport& report) {
  Impl& m = *impl_;
  for (const AdmittedRequest& one : report.admitted) {
    const auto asked = static_cast<double>(one.query_tokens), found = static_cast<double>(one.hit_tokens);
    m.prompt_tokens->Increment(asked);
    m.computed_prompt_tokens->Increment(asked - found);
    for (Counter* counter : {m.cached_prompt_tokens, m.cached_by_hit, m.cached_on_device}) counter->Increment(found);
    const auto reason = static_cast<size_t>(std::ranges::find(kMissReasons, one.miss_reason) - kMissReasons);
    m.misses[reason]->Increment();
    m.missed_tokens[reason]->Increment(asked - found);
    if (one.hit_tokens > 0) m.hit_requests->Increment();
    if (one.miss_reason == MissReason::disabled) continue;  // nothing was looked up
    m.queries->Increment(asked);
    m.hits->Increment(found);
    if (m.old_queries != nullptr) m.old_queries->Increment(asked);
    if (m.old_hits != nullptr) m.old_hits->Increment(found);
    const std::lock_guard lock(m.recent.mutex);
    m.recent.add(one.query_tokens, one.hit_tokens);
  }
  if (report.end_us > report.start_us || report.sequences > 0) {
    m.step_tokens->Observe(static_cast<double>(report.prompt_tokens + report.generated_tokens));
  }
  const auto active = static_cast<double>(report.kv.active_bytes);
  if (active > m.peak_active_bytes->Value()) {
    m.peak_active_bytes->Set(active);
    m.peak_active_step->Set(static_cast<double>(report.step));
  }
}

void Metrics::token_gap(double seconds) {
  impl_->token_gap->Observe(seconds);
  if (impl_->old_token_gap != nullptr) impl_->old_token_gap->Observe(seconds);
}

void Metrics::block_life(const BlockLife& life) {
  if (impl_->block_lifetime == nullptr) return;
  const double idle = static_cast<double>(life.idle_us) / 1e6;
  if (life.moment == BlockLife::Moment::reused) {
    impl_->block_gap->Observe(idle);
  } else {
    impl_->block_lifetime->Observe(static_cast<double>(life.lifetime_us) / 1e6);
    impl_->block_idle->Observe(idle);
  }
}

void Metrics::first_byte(uint64_t arrival_us, uint64_t now_us) {
  impl_->first_token->Observe(seconds_between(arrival_us, now_us));
}

void Metrics::finished(const FinishedRequest& request) {
  const RequestResult& result = request.result;
  if (!request.stream && result.first_token_us > 0) first_byte(request.arrival_us, result.first_token_us);
  const Outcome how = outcome(result);
  if (how == kAbort) {
    return aborted(result.first_scheduled_us == 0 ? AbortState::queued
                   : result.first_token_us == 0   ? AbortState::prefill
                                                  : AbortState::decode);
  }
  impl_->outcomes[how]->Increment();
  impl_->observe_times(request);
  impl_->observe_sizes(request);
}

void Metrics::Impl::observe_times(const FinishedRequest& request) {
  const RequestResult& result = request.result;
  end_to_end->Observe(seconds_between(request.arrival_us, request.end_us));
  if (result.first_scheduled_us == 0) return;
  queue_time->Observe(seconds_between(result.arrival_us, result.first_scheduled_us));
  if (result.first_token_us == 0) return;
  prefill_time->Observe(seconds_between(result.first_scheduled_us, result.first_token_us));
  const double decode = seconds_between(result.first_token_us, result.last_token_us);
  decode_time->Observe(decode);
  inference_time->Observe(seconds_between(result.first_scheduled_us, result.last_token_us));
  const size_t longest = longest_output(result);
  if (longest > 1) token_time->Observe(decode / static_cast<double>(longest - 1));
}

void Metrics::Impl::observe_sizes(const FinishedRequest& request) {
  const RequestResult& result = request.result;
  prompt_sizes->Observe(static_cast<double>(result.prompt_tokens));
  output_sizes->Observe(static_cast<double>(result.completion_tokens));
  longest_outputs->Observe(static_cast<double>(longest_output(result)));
  max_tokens->Observe(request.max_tokens);
  samples->Observe(request.n);
  computed_sizes->Observe(static_cast<double>(result.prompt_tokens - result.cached_tokens));
  preemptions->Observe(result.preemptions);
}

void Metrics::aborted(AbortState state) {
  impl_->aborts[static_cast<size_t>(state)]->Increment();
  impl_->outcomes[kAbort]->Increment();
}
void Metrics::rejected(Rejection reason) { impl_->rejections[static_cast<size_t>(reason)]->Increment(); }

void Metrics::forget_recent() {
  const std::lock_guard lock(impl_->recent.mutex);
  impl_->recent.clear();
}

// --- what is told

std::string Metrics::text(const MetricsSnapshot& snapshot) const {
  std::vector<prometheus::MetricFamily> all = impl_->registry.Collect();
  std::ranges::move(scraped_families(snapshot, impl_->scrape), std::back_inserter(all));
  return metric_text(std::move(all));
}

StatsNumbers Metrics::stats_numbers(const EngineStats& stats) const {
  StatsNumbers numbers{.computed_prompt_tokens = stats.computed_prompt_tokens,
                       .generated_tokens = stats.generated_tokens,
                       .preemptions = stats.preemptions,
                       .running = stats.running,
                       .waiting = stats.waiting,
                       .kv_usage = stats.kv.usage()};
  const std::lock_guard lock(impl_->recent.mutex);
  numbers.recent_query_tokens = impl_->recent.queries;
  numbers.recent_hit_tokens = impl_->recent.hits;
  return numbers;
}

}  // namespace kvarto
