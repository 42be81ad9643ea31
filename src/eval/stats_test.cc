// Expected values: tests/eval/resample.py, which has the words of stats.h in plain integers and fractions.
#include "eval/stats.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "eval/random.h"

namespace kvarto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_near(const Interval& found, const Interval& wanted) {
  EXPECT_NEAR(found.value, wanted.value, 1e-12);
  EXPECT_NEAR(found.low, wanted.low, 1e-12);
  EXPECT_NEAR(found.high, wanted.high, 1e-12);
}

void expect_equal(const Interval& found, double value) {
  EXPECT_EQ(found.value, value);
  EXPECT_EQ(found.low, value);
  EXPECT_EQ(found.high, value);
}

TEST(EvalQuantile, IsLinearBetweenNeighbours) {
  const std::vector<double> sorted = {1, 2, 4, 8};
  const double wanted[][2] = {{0, 1}, {0.25, 1.75}, {0.5, 3}, {0.975, 7.7}, {1, 8}};
  for (const auto& [q, value] : wanted) EXPECT_NEAR(quantile(sorted, q), value, 1e-12) << q;
  EXPECT_EQ(quantile(std::vector<double>{7}, 0.3), 7);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(EvalQuantile, KnowsInfinity) {
  const std::vector<double> sorted = {1, 2, kInfinity, kInfinity};
  EXPECT_EQ(quantile(sorted, 1.0 / 3), 2);
  EXPECT_EQ(quantile(sorted, 0.5), kInfinity);
  EXPECT_EQ(quantile(sorted, 0.9), kInfinity);
  EXPECT_EQ(quantile(std::vector<double>{-kInfinity, 0}, 0.5), -kInfinity);
}

TEST(EvalBootstrap, DrawsWhatTheSpecificationSays) {
  // Five of five: 1 0 0 1 1, then 4 2 4 4 1.
  std::vector<std::vector<uint32_t>> seen;
  bootstrap(5, [&seen](std::span<const uint32_t> drawn) {
    seen.emplace_back(drawn.begin(), drawn.end());
    return 0.0;
  });
  ASSERT_EQ(seen.size(), 1 + size_t{kResamples});
  EXPECT_EQ(seen[0], (std::vector<uint32_t>{1, 1, 1, 1, 1}));
  EXPECT_EQ(seen[1], (std::vector<uint32_t>{2, 3, 0, 0, 0}));
  EXPECT_EQ(seen[2], (std::vector<uint32_t>{0, 1, 1, 0, 3}));
  for (const auto& drawn : seen) ASSERT_EQ(std::accumulate(drawn.begin(), drawn.end(), 0u), 5u);
}

TEST(EvalBootstrap, OfAnyStatistic) {
  const double values[] = {3, 1, 4, 1, 5, 9};
  const Interval variance = bootstrap(6, [&values](std::span<const uint32_t> drawn) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < drawn.size(); ++i) {
      sum += drawn[i] * values[i] / 6;
      squares += drawn[i] * values[i] * values[i] / 6;
    }
    return squares - sum * sum;
  });
  expect_near(variance, {7.472222222222221, 0.8888888888888884, 13.0});
}

TEST(EvalBootstrap, OfARatio) {
  expect_near(bootstrap_ratio(std::vector<double>{1, 2, 4, 8, 3}, std::vector<double>{1, 1, 2, 1, 3}),
              {2.25, 1.1111111111111112, 5.0});
}

TEST(EvalBootstrap, LeavesOutWhatIsNotFinite) {
  // Resamples without the third have a count of 0.
  expect_near(bootstrap_ratio(std::vector<double>{5, 7, 1}, std::vector<double>{0, 0, 1}), {13.0, 1.0, 15.0});
}

TEST(EvalBootstrap, ARatioIsAStatistic) {
  SplitMix random(7);
  std::vector<double> sums(37), counts(37);
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = static_cast<double>(random.between(-1000, 1000));
    counts[i] = static_cast<double>(random.between(1, 64));
  }
  const Interval wanted = bootstrap(sums.size(), [&](std::span<const uint32_t> drawn) {
    const double sum = std::inner_product(drawn.begin(), drawn.end(), sums.begin(), 0.0);
    return sum / std::inner_product(drawn.begin(), drawn.end(), counts.begin(), 0.0);
  });
  expect_near(bootstrap_ratio(sums, counts), wanted);
  EXPECT_LT(wanted.low, wanted.high);
}

TEST(EvalBootstrap, OfNoneAndOfOne) {
  const auto twice = [](std::span<const uint32_t> drawn) { return 2.0 * drawn[0]; };
  expect_equal(bootstrap(1, twice), 2);
  expect_equal(bootstrap_ratio(std::vector<double>{3}, std::vector<double>{4}), 0.75);
  for (const Interval& none : {bootstrap(0, twice), bootstrap_ratio({}, {})}) {
    EXPECT_TRUE(std::isnan(none.value) && std::isnan(none.low) && std::isnan(none.high));
  }
}

TEST(EvalBootstrap, AShareOfAllHasNoUncertainty) {
  std::vector<double> values(50);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sqrt(static_cast<double>(i + 1));
  expect_equal(bootstrap_ratio(values, values), 1);
}

TEST(EvalMcnemar, IsTheBinomialFormula) {
  const struct {
    uint64_t lost, gained;
    double p;
  } cases[] = {{0, 0, 1},
               {1, 0, 1},
               {5, 0, 0.0625},
               {6, 0, 0.03125},
               {8, 1, 0.0390625},
               {10, 3, 0.09228515625},
               {25, 12, 0.04703102743951604},
               {33, 33, 1},
               {700, 600, 0.0060157938610449525},
               {2000, 1500, 2.942363832253335e-17},
               {900, 0, 2.3661043723335494e-271}};
  for (const auto& each : cases) {
    EXPECT_NEAR(mcnemar(each.lost, each.gained) / each.p, 1, 1e-10) << each.lost << " lost, " << each.gained;
  }
}

TEST(EvalMcnemar, NeitherOverflowsNorLeavesItsRange) {
  EXPECT_EQ(mcnemar(500'001, 500'000), 1);
  EXPECT_EQ(mcnemar(100'000, 0), 0);  // 2^-99999
  // Normal with continuity: erfc((|lost - gained| - 1) / sqrt(2 (lost + gained))).
  EXPECT_NEAR(mcnemar(501'000, 499'000), std::erfc(1999 / std::sqrt(2e6)), 1e-6);
}

RC_GTEST_PROP(EvalMcnemar, IsSymmetricalAndFallsWithTheDifference, ()) {
  const auto lost = *rc::gen::inRange<uint64_t>(1, 300), gained = *rc::gen::inRange<uint64_t>(0, 300);
  const double p = mcnemar(lost, gained);
  RC_ASSERT(p == mcnemar(gained, lost));
  RC_ASSERT(p > 0 && p <= 1);
  RC_ASSERT(lost <= gained || mcnemar(lost + 1, gained) < p);
}

}  // namespace
}  // namespace kvarto
