// Numbers with their uncertainty. All comparisons are paired: the same tasks, the same positions. Pure functions, any
// thread; the same input gives the same figures.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace kvarto {

inline constexpr uint32_t kResamples = 10'000;
inline constexpr uint64_t kResampleSeed = 20'231;

// A value and its 95 % interval.
struct Interval {
  double value = 0, low = 0, high = 0;
};

// Percentile bootstrap (Efron 1979) over `units` things that are drawn with replacement. `statistic` gets how often
// each was drawn, [units]; its value for all ones is Interval::value. Resample r (from 0) draws, for j in [0, units),
// the thing (splitmix_at(kResampleSeed, r * units + j + 1) >> 32) * units >> 32. low and high are quantile() .025 and
// .975 of the kResamples values, those that are not finite left out. units 0: all NaN; 1: no interval (low = value =
// high).
Interval bootstrap(size_t units, const std::function<double(std::span<const uint32_t> drawn)>& statistic);
// Of a mean: sum of sums over sum of counts, each unit bringing both ([units]).
Interval bootstrap_ratio(std::span<const double> sums, std::span<const double> counts);

// Values at neighbouring positions hang together, so those of texts are drawn in runs of so many positions.
inline constexpr uint32_t kRunPositions = 64;

// McNemar's test, exact and two-sided: how likely is a split as uneven as this when right answers are lost and gained
// alike? Binomial(lost + gained, 1/2); 1 when both are 0.
double mcnemar(uint64_t lost, uint64_t gained);

// Sorted values at q in [0, 1], linear between neighbours at q * (n - 1). NaN without values.
double quantile(std::span<const double> sorted, double q);

}  // namespace kvarto
