// Expected values: tests/eval/resample.py, which has the words of stats.h in plain integers and fractions.
#include "eval/stats.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

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

TEST(EvalBootstrap, IsOfAMean) {
  expect_near(bootstrap(std::vector<double>{1, 2, 4, 8, 3}, std::vector<double>{1, 1, 2, 1, 3}),
              {2.25, 1.1111111111111112, 5.0});
}

TEST(EvalBootstrap, LeavesOutWhatIsNotFinite) {
  // Resamples without the third have a count of 0.
  expect_near(bootstrap(std::vector<double>{5, 7, 1}, std::vector<double>{0, 0, 1}), {13.0, 1.0, 15.0});
}

TEST(EvalBootstrap, OfMoreUnits) {
  std::vector<double> sums, counts;
  for (int i = 0; i < 37; ++i) {
    sums.push_back(i * i * 7 % 101 - 50);
    counts.push_back(1 + i % 5);
  }
  expect_near(bootstrap(sums, counts), {0.8148148148148148, -2.262206455895776, 4.188132822716234});
}

TEST(EvalBootstrap, OfNoneAndOfOne) {
  expect_equal(bootstrap(std::vector<double>{3}, std::vector<double>{4}), 0.75);
  const Interval none = bootstrap({}, {});
  EXPECT_TRUE(std::isnan(none.value) && std::isnan(none.low) && std::isnan(none.high));
}

TEST(EvalBootstrap, AShareOfAllHasNoUncertainty) {
  std::vector<double> values(50);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sqrt(static_cast<double>(i + 1));
  expect_equal(bootstrap(values, values), 1);
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
