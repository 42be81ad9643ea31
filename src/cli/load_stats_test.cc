// Expected values: numpy.percentile(values, p) with its default method, and sums done by hand.
#include "cli/load_stats.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvarto {
namespace {

LoadRecord finished(double due, double first, double last, uint32_t tokens) {
  LoadRecord record;
  record.outcome = LoadOutcome::done;
  record.status = 200;
  record.due_s = record.start_s = due;
  record.first_s = first;
  record.last_s = record.end_s = last;
  record.events = record.output_tokens = tokens;
  return record;
}

TEST(LoadQuantile, IsNumpysLinearOne) {
  // np.percentile([15, 20, 35, 40, 50], [0, 5, 30, 40, 50, 95, 100])
  const std::vector<double> sorted = {15, 20, 35, 40, 50};
  const double wanted[][2] = {{0, 15}, {0.05, 16}, {0.30, 23}, {0.40, 29}, {0.50, 35}, {0.95, 48}, {1, 50}};
  for (const auto& [q, value] : wanted) EXPECT_NEAR(quantile(sorted, q), value, 1e-12) << q;
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({7}, 0.99), 7);
}

TEST(LoadSpread, OfOneToAHundred) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  const Spread spread = spread_of(values);  // np.percentile(np.arange(1, 101), [50, 95, 99]) = 50.5, 95.05, 99.01
  EXPECT_EQ(spread.count, 100u);
  EXPECT_NEAR(spread.mean, 50.5, 1e-12);
  EXPECT_NEAR(spread.p50, 50.5, 1e-12);
  EXPECT_NEAR(spread.p95, 95.05, 1e-12);
  EXPECT_NEAR(spread.p99, 99.01, 1e-12);
  EXPECT_EQ(spread.max, 100);
}

TEST(LoadSlo, ReadsLimitsAndRefusesWhatIsNone) {
  const Result<Slo> slo = parse_slo("ttft=1s,tpot=50ms");
  ASSERT_TRUE(slo);
  EXPECT_DOUBLE_EQ(*slo->ttft_s, 1);
  EXPECT_DOUBLE_EQ(*slo->tpot_s, 0.05);
  EXPECT_FALSE(slo->e2e_s);
  EXPECT_DOUBLE_EQ(*parse_slo("e2e=2m")->e2e_s, 120);
  for (const char* bad : {"", "ttft", "ttft=1", "ttft=s", "ttft=-1s", "itl=1s", "ttft=1s,ttft=2s", "ttft=1s,"}) {
    EXPECT_FALSE(parse_slo(bad)) << bad;
  }
  EXPECT_NE(parse_slo("ttft=5 s").error().message.find("1.5s"), std::string::npos);
}

TEST(LoadSlo, CountsFromWhenARequestWasDue) {
  LoadRecord record = finished(10, 10.5, 12.5, 5);
  EXPECT_DOUBLE_EQ(ttft_of(record), 0.5);
  EXPECT_DOUBLE_EQ(*tpot_of(record), 0.5);
  EXPECT_DOUBLE_EQ(e2e_of(record), 2.5);
  EXPECT_TRUE(keeps(Slo{.ttft_s = 0.5, .tpot_s = 0.5, .e2e_s = 2.5}, record));
  EXPECT_FALSE(keeps(Slo{.ttft_s = 0.4, .tpot_s = {}, .e2e_s = {}}, record));
  EXPECT_FALSE(keeps(Slo{.ttft_s = {}, .tpot_s = 0.4, .e2e_s = {}}, record));
  EXPECT_FALSE(keeps(Slo{.ttft_s = {}, .tpot_s = {}, .e2e_s = 2.4}, record));
  record.output_tokens = 1;
  EXPECT_FALSE(tpot_of(record));
  record.outcome = LoadOutcome::aborted;
  EXPECT_FALSE(keeps(Slo{}, record));
}

TEST(LoadSummary, SeparatesOutcomes) {
  std::vector<LoadRecord> records = {finished(0, 1, 3, 3), finished(1, 1.5, 2.5, 2)};
  records[0].prompt_tokens = records[0].prompt_tokens_asked = 100;
  records[0].cached_tokens = 48;
  records[0].usage = records[0].cached_known = true;
  records[0].gaps_s = {1.0f, 1.0f};
  records[1].gaps_s = {1.0f};
  LoadRecord bad;
  bad.end_s = 4;
  bad.outcome = LoadOutcome::refused;
  for (const int status : {503, 503, 500, 429}) {
    bad.status = status;
    records.push_back(bad);
  }
  bad.outcome = LoadOutcome::broken;
  bad.error = "cut";
  records.push_back(bad);
  bad.outcome = LoadOutcome::aborted;
  records.push_back(bad);

  const LoadSummary summary = summarise(records, Slo{.ttft_s = 0.6, .tpot_s = {}, .e2e_s = {}});
  EXPECT_EQ(summary.requests, 8u);
  EXPECT_EQ(summary.done, 2u);
  EXPECT_EQ(summary.overloaded, 2u);
  EXPECT_EQ(summary.aborted, 1u);
  EXPECT_EQ(summary.refused_by_status, (std::map<int, size_t>{{429, 1}, {500, 1}}));
  EXPECT_EQ(summary.broken, (std::map<std::string, size_t>{{"cut", 1}}));
  EXPECT_DOUBLE_EQ(summary.wall_s, 4);
  EXPECT_EQ(summary.output_tokens, 5u);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_s, 1.25);
  EXPECT_DOUBLE_EQ(summary.total_tokens_per_s, 26.25);
  EXPECT_DOUBLE_EQ(summary.ttft_s.p50, 0.75);  // of 1 and 0.5
  EXPECT_EQ(summary.gap_s.count, 3u);
  EXPECT_EQ(summary.cached_tokens, 48u);
  EXPECT_EQ(summary.usage_missing, 1u);
  EXPECT_EQ(summary.lengths_asked, 1u);
  EXPECT_EQ(summary.lengths_hit, 1u);
  EXPECT_EQ(summary.good, 1u);
  EXPECT_DOUBLE_EQ(summary.good_per_s, 0.25);
}

TEST(LoadTimeline, SharesTokensOutOverTime) {
  // Four slices of a second: the first request runs through all of them, with its tokens in the last two.
  const LoadTimeline timeline = timeline_of({finished(0, 2, 4, 10), finished(1, 1.5, 1.5, 3)}, 4);
  ASSERT_EQ(timeline.running.size(), 4u);
  EXPECT_DOUBLE_EQ(timeline.slice_s, 1);
  const double running[] = {1, 1.5, 1, 1}, tokens[] = {0, 3, 5, 5};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(timeline.running[i], running[i], 1e-12) << i;
    EXPECT_NEAR(timeline.tokens_per_s[i], tokens[i], 1e-12) << i;
  }
  EXPECT_TRUE(timeline_of({}, 4).running.empty());
}

}  // namespace
}  // namespace kvarto
