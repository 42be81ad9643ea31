// Numbers with their uncertainty. All comparisons are paired: the same tasks, the same positions. Pure functions, any
// thread; the same input gives the same figures.
#pragma once

#include <cstdint>
#include <span>

namespace kvarto {

inline constexpr uint32_t kResamples = 10'000;
inline constexpr uint64_t kResampleSeed = 20'231;

// A value and its 95 % interval.
struct Interval {
  double value = 0, low = 0, high = 0;
};

// Percentile bootstrap (Efron 1979) of a mean: sum of sums over sum of counts, each unit bringing both ([units]). Units
// are drawn with replacement: resample r (from 0) draws, for j in [0, units), the unit
// (splitmix_at(kResampleSeed, r * units + j + 1) >> 32) * units >> 32. low and high are quantile() .025 and .975 of the
// kResamples means, those that are not finite left out. No units: all NaN; one: no interval (low = value = high).
Interval bootstrap(std::span<const double> sums, std::span<const double> counts);

// Values at neighbouring positions hang together, so those of texts are drawn in stretches of so many positions.
inline constexpr uint32_t kStretchPositions = 64;

// McNemar's test, exact and two-sided: how likely is a split as uneven as this when right answers are lost and gained
// alike? Binomial(lost + gained, 1/2); 1 when both are 0. It takes answers as independent of each other.
double mcnemar(uint64_t lost, uint64_t gained);

// Sorted values at q in [0, 1], linear between neighbours at q * (n - 1). NaN without values.
double quantile(std::span<const double> sorted, double q);

}  // namespace kvarto
