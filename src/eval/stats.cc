#include "eval/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "eval/random.h"

namespace kvarto {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// What resample `r` draws at place `j`.
size_t drawn_at(uint64_t r, uint64_t j, uint64_t units) {
  return static_cast<size_t>(((splitmix_at(kResampleSeed, r * units + j + 1) >> 32) * units) >> 32);
}

}  // namespace

Interval bootstrap(std::span<const double> sums, std::span<const double> counts) {
  CHECK(sums.size() == counts.size(), "each unit brings a sum and a count");
  const size_t units = sums.size();
  if (units == 0) return {kNaN, kNaN, kNaN};
  double sum = 0, count = 0;
  for (size_t i = 0; i < units; ++i) {
    sum += sums[i];
    count += counts[i];
  }
  const double value = sum / count;
  if (units == 1) return {value, value, value};
  std::vector<double> resampled(kResamples);
  for (uint64_t r = 0; r < kResamples; ++r) {
    sum = count = 0;
    for (uint64_t j = 0; j < units; ++j) {
      const size_t i = drawn_at(r, j, units);
      sum += sums[i];
      count += counts[i];
    }
    resampled[r] = sum / count;
  }
  std::erase_if(resampled, [](double each) { return !std::isfinite(each); });
  std::sort(resampled.begin(), resampled.end());
  return {value, quantile(resampled, 0.025), quantile(resampled, 0.975)};
}

double mcnemar(uint64_t lost, uint64_t gained) {
  if (lost == gained) return 1;
  const uint64_t n = lost + gained, fewer = std::min(lost, gained);
  // Binomial coefficients in units of C(n, fewer). What lies between the tails may overflow to infinity: then they are
  // below what a double can hold, and p is 0.
  double tail = 1, middle = 0, term = 1;
  for (uint64_t i = fewer; i > 0; --i) {
    term *= static_cast<double>(i) / static_cast<double>(n - i + 1);
    tail += term;
  }
  term = 1;
  for (uint64_t i = fewer + 1; i < n - fewer; ++i) {
    term *= static_cast<double>(n - i + 1) / static_cast<double>(i);
    middle += term;
  }
  return 2 * tail / (2 * tail + middle);
}

double quantile(std::span<const double> sorted, double q) {
  if (sorted.empty()) return kNaN;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const double part = at - static_cast<double>(low);
  // Infinite neighbours must not make NaN of 0 * infinity or infinity - infinity.
  if (part == 0 || !std::isfinite(sorted[low])) return sorted[low];
  return sorted[low] + part * (sorted[low + 1] - sorted[low]);
}

}  // namespace kvarto
