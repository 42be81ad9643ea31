#include "server/metrics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace kvarto {
namespace {

constexpr size_t kArenaBytes = 57344;

// Two groups, the second with a window of 32 tokens; each layer has one head of 16 dims.
KvLayout make_layout() {
  const LayerKv full{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
  LayerKv window = full;
  window.kind = GroupKind::window;
  window.window = 32;
  return *KvLayout::make({.layers = {full, window}}, {});
}

std::unique_ptr<Metrics> make_metrics(const MetricsOptions& options) {
  EngineInfo info;
  info.max_model_len = 100;
  info.kv_arena_bytes = kArenaBytes;
  info.kv_dtype = "float16";
  return std::make_unique<Metrics>(options, info, EngineOptions(), make_layout());
}

uint64_t us(double seconds) { return static_cast<uint64_t>(seconds * 1e6 + 0.5); }

SampleResult sample(size_t tokens, FinishReason finish) {
  SampleResult made;
  made.tokens.assign(tokens, 1);
  made.finish = finish;
  return made;
}

// Times in seconds: in the engine, first scheduled, first token, last token; 0: it never came to that.
RequestResult result(std::vector<SampleResult> samples, uint64_t prompt, uint64_t cached, std::array<double, 4> times) {
  RequestResult made;
  for (const SampleResult& one : samples) made.completion_tokens += one.tokens.size();
  made.samples = std::move(samples);
  made.prompt_tokens = prompt;
  made.cached_tokens = cached;
  made.arrival_us = us(times[0]);
  made.first_scheduled_us = us(times[1]);
  made.first_token_us = us(times[2]);
  made.last_token_us = us(times[3]);
  return made;
}

std::string without_help(const std::string& text) {
  std::istringstream lines(text);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# HELP ")) kept += line + "\n";
  }
  return kept;
}

// The value of one series, spelled as in the text.
std::string value_of(const std::string& text, const std::string& series) {
  const size_t at = ("\n" + text).find("\n" + series + " ");
  if (at == std::string::npos) return "absent";
  const size_t from = at + series.size() + 1;
  return text.substr(from, text.find('\n', from) - from);
}

constexpr char kEngine[] = R"({engine="0",model_name="tiny"})";
std::string plain(const std::string& name) { return name + kEngine; }

// --- every series, against tests/golden/metrics.txt: tools/make_metrics_golden.py tells the same story by hand

// The step of this number, a tenth of a second long.
StepReport computed(uint64_t step, uint32_t sequences, uint64_t prompt_tokens, uint64_t generated_tokens) {
  StepReport report;
  report.step = step;
  report.start_us = us(9.9) + step * us(0.1);
  report.end_us = report.start_us + us(0.1);
  report.sequences = sequences;
  report.prompt_tokens = prompt_tokens;
  report.generated_tokens = generated_tokens;
  return report;
}

void tell_steps(Metrics& metrics) {
  const AdmittedRequest first[] = {{1, 40, 0, MissReason::no_match}, {2, 50, 32, MissReason::none}};
  const AdmittedRequest second[] = {{3, 10, 0, MissReason::shorter_than_block}};
  const AdmittedRequest third[] = {{4, 20, 0, MissReason::disabled}};
  StepReport report = computed(1, 2, 58, 2);
  report.admitted = first;
  report.kv.active_bytes = 4096;
  metrics.step(report);
  report = computed(2, 3, 10, 3);
  report.admitted = second;
  report.kv.active_bytes = 8192;
  metrics.step(report);
  report = computed(3, 2, 20, 2);
  report.admitted = third;
  report.kv.active_bytes = 8192;
  metrics.step(report);
  StepReport nothing;
  nothing.step = 3;
  nothing.start_us = nothing.end_us = us(10.4);
  metrics.step(nothing);
}

void tell_tokens(Metrics& metrics) {
  TokenGaps gaps(metrics, 2);
  for (const auto& [index, seconds] :
       {std::pair{0u, 10.1}, std::pair{1u, 10.1}, std::pair{0u, 10.15}, std::pair{1u, 10.25}, std::pair{0u, 10.9}}) {
    TokenEvent event;
    event.sample = index;
    event.token = 7;
    event.time_us = us(seconds);
    gaps(event);
  }
  TokenEvent end;
  end.sample = 1;
  end.finish = FinishReason::cancelled;
  end.time_us = us(11);
  gaps(end);
  metrics.first_byte(us(10.0), us(10.12));
  metrics.first_byte(us(10.0), us(10.3));
}

void tell_ends(Metrics& metrics) {
  RequestResult a =
      result({sample(3, FinishReason::stop), sample(2, FinishReason::length)}, 40, 0, {9.95, 10.0, 10.1, 10.9});
  a.preemptions = 1;
  metrics.finished({.result = a, .arrival_us = us(9.9), .end_us = us(11.0), .stream = true, .n = 2, .max_tokens = 64});
  const RequestResult b = result({sample(1, FinishReason::stop)}, 50, 32, {9.6, 10.0, 10.1, 10.1});
  metrics.finished({.result = b, .arrival_us = us(9.5), .end_us = us(10.2), .max_tokens = 16});
  RequestResult c = result({sample(0, FinishReason::error)}, 20, 0, {10.0, 0, 0, 0});
  c.error = Error{ErrorCode::internal, "a bug"};
  metrics.finished({.result = c, .arrival_us = us(10.0), .end_us = us(10.5), .max_tokens = 8});
  const RequestResult d = result({sample(2, FinishReason::cancelled)}, 20, 0, {10.0, 10.1, 10.2, 10.3});
  metrics.finished({.result = d, .arrival_us = us(10.0), .end_us = us(10.5), .stream = true, .max_tokens = 8});
  const RequestResult e = result({sample(0, FinishReason::cancelled)}, 20, 0, {10.0, 10.1, 0, 0});
  metrics.finished({.result = e, .arrival_us = us(10.0), .end_us = us(10.5), .max_tokens = 8});
  const RequestResult f = result({sample(0, FinishReason::cancelled)}, 20, 0, {10.0, 0, 0, 0});
  metrics.finished({.result = f, .arrival_us = us(10.0), .end_us = us(10.5), .max_tokens = 8});
  metrics.aborted(AbortState::queued);
  metrics.rejected(Rejection::queued_requests);
  metrics.rejected(Rejection::queued_requests);
  metrics.rejected(Rejection::queued_tokens);
  for (int i = 0; i < 3; ++i) metrics.rejected(Rejection::text_queue);
  metrics.block_life({.moment = BlockLife::Moment::reused, .idle_us = us(0.5), .lifetime_us = us(2)});
  metrics.block_life({.moment = BlockLife::Moment::replaced, .idle_us = us(3), .lifetime_us = us(10)});
}

MetricsSnapshot make_snapshot() {
  using State = BlockCell::State;
  MetricsSnapshot s;
  s.engine.kv = {.arena_bytes = kArenaBytes,
                 .free_bytes = 40960,
                 .active_bytes = 8192,
                 .cached_bytes = 6144,
                 .slab_remainder_bytes = 2048,
                 .blocks_total = 56,
                 .live_bytes = 6144,
                 .replaced_blocks = 11,
                 .window_blocks_freed = 12,
                 .copied_tails = 13};
  s.engine.running = 3;
  s.engine.waiting = 2;
  s.engine.queued_tokens = 70;
  s.engine.steps = 9;
  s.engine.cut_passes = 8;
  s.engine.preemptions = 6;
  s.engine.recomputed_tokens = 26;
  s.engine.preempted_tokens = 90;
  s.engine.resumes_from_cache = 3;
  s.engine.resumes_in_part = 2;
  s.engine.resumes_recomputed = 1;
  s.engine.resume_cached_tokens = 64;
  s.engine.saturated_kv_values = 7;
  s.engine.internal_errors = 4;
  s.engine.computed_prompt_tokens = 88;
  s.engine.generated_tokens = 1234567;
  const BlockCell free{.bytes = 1024};
  s.blocks = {free,
              {.state = State::open, .group = 0, .references = 1, .age_us = us(0.5)},
              {.state = State::active, .named = true, .group = 0, .references = 2, .age_us = us(4)},
              free,
              {.state = State::active, .group = 1, .references = 1, .age_us = us(4)},
              {.state = State::cached, .named = true, .group = 0, .age_us = us(20), .idle_us = us(7)},
              {.state = State::cached, .named = true, .group = 0, .age_us = us(2000), .idle_us = us(0.001)},
              free};
  s.blocks_age_us = us(2.5);
  s.memory = {{.tag = "weights", .bytes = 134217728, .peak_bytes = 134217728},
              {.tag = "logits", .bytes = 2048, .peak_bytes = 4096, .peak_step = 2}};
  s.process = {.resident_bytes = 300000,
               .virtual_bytes = 2500000,
               .cpu_seconds = 12.25,
               .start_seconds = 1795000000.5,
               .open_fds = 17,
               .max_fds = 1024};
  s.http = {.accepted = 22, .requests = 23, .refused = 24, .dropped_slow = 25, .open = 21};
  s.turns = {.lookups = 41, .hits = 42, .tokens_spliced = 43, .refused = 44, .turns = 45, .chats = 46, .bytes = 47};
  s.trace = {.written = 48, .dropped = 49};
  s.kv_events = {.batches = 50,
                 .events = 51,
                 .bytes = 52,
                 .dropped_batches = 53,
                 .replays = 54,
                 .replayed_batches = 55,
                 .bad_requests = 56};
  s.watchdog_pushes = 5;
  s.ignored_fields = 31;
  s.prefix_breakers = 32;
  s.volatile_saved_tokens = 33;
  return s;
}

MetricsOptions everything() {
  return {.model_name = "tiny",
          .kv_block_lives = true,
          .hidden_metrics = true,
          .histogram_buckets = {},
          .cache_config = {.gpu_memory_utilization = 0.9,
                           .kv_cache_memory_bytes = kArenaBytes,
                           .num_gpu_blocks_override = 56,
                           .user_specified_block_size = true}};
}

TEST(Metrics, EverySeries) {
  const auto metrics = make_metrics(everything());
  tell_steps(*metrics);
  tell_tokens(*metrics);
  tell_ends(*metrics);
  const Result<std::string> golden = read_file(KVARTO_SOURCE_DIR "/tests/golden/metrics.txt");
  ASSERT_TRUE(golden) << golden.error().message;
  EXPECT_EQ(without_help(metrics->text(make_snapshot())), *golden);
}

TEST(Metrics, EveryFamilyHasOneHelpAndOneType) {
  std::istringstream lines(make_metrics(everything())->text({}));
  std::set<std::string> families;
  std::string helped;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      helped = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(helped).second) << helped;
      EXPECT_GT(line.size(), 8 + helped.size()) << "no words: " << line;
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_EQ(line.substr(7, line.find(' ', 7) - 7), helped);
    } else {
      EXPECT_TRUE(line.starts_with(helped)) << line;
    }
  }
  EXPECT_GT(families.size(), 80u);
}

// Dashboards divide by series that have not happened yet: all are there from the start.
TEST(Metrics, EverySeriesIsThereFromTheStart) {
  const auto series = [](const std::string& text) {
    std::istringstream lines(text);
    std::set<std::string> names;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with('#')) names.insert(line.substr(0, line.rfind(' ')));
    }
    return names;
  };
  const auto metrics = make_metrics(everything());
  MetricsSnapshot snapshot = make_snapshot();  // it has the ledger's tags, and the number of blocks
  const std::set<std::string> before = series(metrics->text(snapshot));
  tell_steps(*metrics);
  tell_tokens(*metrics);
  tell_ends(*metrics);
  EXPECT_EQ(series(metrics->text(snapshot)), before);
}

TEST(Metrics, LeavesOutWhatNobodyAskedFor) {
  const std::string text = make_metrics({.model_name = "tiny"})->text(make_snapshot());
  for (const char* name : {"kv_block_lifetime", "kv_block_idle_before_evict", "kv_block_reuse_gap", "gpu_cache_usage",
                           "gpu_prefix_cache", "vllm:time_per_output_token"}) {
    EXPECT_EQ(text.find(name), std::string::npos) << name;
  }
}

TEST(Metrics, CustomBuckets) {
  const auto metrics = make_metrics({.model_name = "tiny", .histogram_buckets = {{"request_latency", {0.5, 1e6}}}});
  const std::string text = metrics->text(make_snapshot());
  const std::string start = R"(vllm:request_queue_time_seconds_bucket{engine="0",le=")";
  const std::string end = R"(",model_name="tiny"})";
  EXPECT_EQ(value_of(text, start + "0.5" + end), "0.0");
  EXPECT_EQ(value_of(text, start + "1e+06" + end), "0.0");
  EXPECT_EQ(value_of(text, start + "+Inf" + end), "0.0");
  EXPECT_EQ(value_of(text, start + "0.3" + end), "absent");
  EXPECT_EQ(value_of(text, R"(vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001)" + end), "0.0");
}

TEST(Metrics, RefusesBucketsThatMakeNoSense) {
  EXPECT_TRUE(check_histogram_buckets({{"request_tokens", {1, 2.5, 10}}, {"kv_cache_residency", {0.5}}}));
  const auto message = [](const std::string& family, std::vector<double> bounds) {
    const Status status = check_histogram_buckets({{family, std::move(bounds)}});
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_NE(message("latency", {1}).find("'latency'; there are request_latency, time_to_first_token"),
            std::string::npos);
  for (const std::vector<double>& bounds :
       {std::vector<double>{}, {1, 1}, {2, 1}, {1, std::numeric_limits<double>::infinity()}, {std::nan("")}}) {
    EXPECT_NE(message("request_latency", bounds).find("bounds of 'request_latency'"), std::string::npos);
  }
}

// --- cases that broke other systems

// What is computed again after a preemption is no hit; a prompt counts once, however many chunks it is cut into.
TEST(Metrics, RecomputingIsNoHit) {
  const auto metrics = make_metrics({.model_name = "tiny"});
  for (RequestId id = 1; id <= 20; ++id) {
    const AdmittedRequest one[] = {{id, 30, 0, MissReason::no_match}};
    const PreemptedSample lost[] = {{id, 0, 30}};
    const ResumedSample back[] = {{id, 0, 30, 16}};
    StepReport report = computed(2 * id - 1, 1, 30, 0);
    report.admitted = one;
    report.preempted = lost;
    metrics->step(report);
    report = computed(2 * id, 1, 14, 0);
    report.resumed = back;
    metrics->step(report);
  }
  MetricsSnapshot snapshot;
  snapshot.engine.preemptions = 20;
  snapshot.engine.recomputed_tokens = 20 * 14;
  std::string text = metrics->text(snapshot);
  EXPECT_EQ(value_of(text, plain("vllm:prefix_cache_hits_total")), "0.0");
  EXPECT_EQ(value_of(text, plain("vllm:prefix_cache_queries_total")), "600.0");
  EXPECT_EQ(value_of(text, plain("vllm:num_preemptions_total")), "20.0");
  EXPECT_EQ(value_of(text, plain("kvarto:recomputed_tokens_total")), "280.0");

  // 100 tokens, 96 of them known; and the same prompt, unknown, in seven chunks of 16 tokens.
  const AdmittedRequest cold[] = {{21, 100, 0, MissReason::no_match}};
  for (uint32_t chunk = 0; chunk < 7; ++chunk) {
    StepReport report = computed(41 + chunk, 1, 16, 0);
    if (chunk == 0) report.admitted = cold;
    metrics->step(report);
  }
  const AdmittedRequest warm[] = {{22, 100, 96, MissReason::none}};
  StepReport again = computed(48, 1, 4, 0);
  again.admitted = warm;
  metrics->step(again);
  text = metrics->text(snapshot);
  EXPECT_EQ(value_of(text, plain("vllm:prefix_cache_queries_total")), "800.0");
  EXPECT_EQ(value_of(text, plain("vllm:prefix_cache_hits_total")), "96.0");
}

// 100 ms per step, one request at a time: two of five tokens that arrive together, and one that gives up in the queue.
TEST(Metrics, TimeToFirstTokenHoldsTheQueue) {
  const auto metrics = make_metrics({.model_name = "tiny"});
  const RequestResult first = result({sample(5, FinishReason::length)}, 8, 0, {1.0, 1.0, 1.1, 1.5});
  const RequestResult second = result({sample(5, FinishReason::length)}, 8, 0, {1.0, 1.5, 1.6, 2.0});
  const RequestResult third = result({sample(0, FinishReason::cancelled)}, 8, 0, {1.0, 0, 0, 0});
  for (const RequestResult* one : {&third, &first, &second}) {
    metrics->finished({.result = *one, .arrival_us = us(1.0), .end_us = one->last_token_us, .max_tokens = 5});
  }
  const std::string text = metrics->text({});
  EXPECT_EQ(value_of(text, plain("vllm:time_to_first_token_seconds_count")), "2.0");
  EXPECT_EQ(value_of(text, plain("vllm:time_to_first_token_seconds_sum")), "0.7");
  EXPECT_EQ(value_of(text, R"(vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="tiny"})"), "1.0");
  EXPECT_EQ(value_of(text, R"(vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"})"),
            "2.0");
  EXPECT_EQ(value_of(text, R"(vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"})"),
            "1.0");
  EXPECT_EQ(value_of(text, R"(kvarto:aborted_requests_total{engine="0",model_name="tiny",state="queued"})"), "1.0");
}

TEST(Metrics, TheStatsLineLooksAtTheLastThousandRequests) {
  const auto metrics = make_metrics({.model_name = "tiny"});
  const auto admit = [&](uint64_t hit_tokens, MissReason reason) {
    const AdmittedRequest one[] = {{1, 32, hit_tokens, reason}};
    StepReport report = computed(1, 1, 32, 0);
    report.admitted = one;
    metrics->step(report);
  };
  for (int i = 0; i < 400; ++i) admit(0, MissReason::no_match);
  admit(0, MissReason::disabled);  // looked for nothing
  EXPECT_EQ(metrics->stats_numbers({}).recent_query_tokens, 400u * 32);
  EXPECT_EQ(metrics->stats_numbers({}).recent_hit_tokens, 0u);
  for (int i = 0; i < 1000; ++i) admit(16, MissReason::none);
  EXPECT_EQ(metrics->stats_numbers({}).recent_query_tokens, 1000u * 32);
  EXPECT_EQ(metrics->stats_numbers({}).recent_hit_tokens, 1000u * 16);
  metrics->forget_recent();
  EXPECT_EQ(metrics->stats_numbers({}).recent_query_tokens, 0u);
  admit(16, MissReason::none);
  EXPECT_EQ(metrics->stats_numbers({}).recent_hit_tokens, 16u);
}

// --- docs/grafana.json

void collect_queries(const nlohmann::json& node, std::vector<std::string>& out) {
  if (node.is_object()) {
    for (const auto& [key, value] : node.items()) {
      if ((key == "expr" || key == "query" || key == "definition") && value.is_string()) {
        out.push_back(value.get<std::string>());
      } else {
        collect_queries(value, out);
      }
    }
  } else if (node.is_array()) {
    for (const nlohmann::json& value : node) collect_queries(value, out);
  }
}

TEST(Grafana, EveryMetricOfTheDashboardExists) {
  const Result<std::string> file = read_file(KVARTO_SOURCE_DIR "/docs/grafana.json");
  ASSERT_TRUE(file) << file.error().message;
  std::vector<std::string> queries;
  collect_queries(nlohmann::json::parse(*file), queries);
  const std::string text = "\n" + make_metrics({.model_name = "tiny"})->text(make_snapshot());
  const std::regex name("(vllm|kvarto):[a-zA-Z0-9_]+|process_[a-z_]+");
  std::set<std::string> used;
  for (const std::string& query : queries) {
    for (auto it = std::sregex_iterator(query.begin(), query.end(), name); it != std::sregex_iterator(); ++it) {
      used.insert(it->str());
    }
  }
  EXPECT_GT(used.size(), 25u);
  for (const std::string& one : used) {
    EXPECT_TRUE(text.find("\n" + one + "{") != std::string::npos || text.find("\n" + one + " ") != std::string::npos)
        << one;
  }
}

}  // namespace
}  // namespace kvarto
