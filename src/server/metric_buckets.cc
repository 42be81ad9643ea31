#include "server/metric_buckets.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "server/metrics.h"

namespace kvarto {
namespace {

struct Family {
  std::string_view name;
  std::vector<double> bounds;  // empty: 1, 2, 5, 10, ... up to the longest request
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"request_latency", {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                           30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0}},
      {"time_to_first_token", {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                               1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0}},
      {"inter_token_latency",
       {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0}},
      {"iteration_tokens", {1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0}},
      {"request_params_n", {1.0, 2.0, 5.0, 10.0, 20.0}},
      {"request_num_preemptions", {1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0}},
      {"kv_cache_residency", {0.001, 0.002, 0.005, 0.01, 0.02, 0.05,  0.1,   0.2,   0.5,    1.0,   2.0,
                              5.0,   10.0,  20.0,  30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0}},
      {"request_tokens", {}},
  };
  return all;
}

std::vector<double> one_two_five(uint32_t most) {
  std::vector<double> bounds;
  for (double power = 1;; power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (step * power > most) return bounds;
      bounds.push_back(step * power);
    }
  }
}

std::string known_names() {
  std::string names;
  for (const Family& family : families()) names += (names.empty() ? "" : ", ") + std::string(family.name);
  return names;
}

}  // namespace

std::vector<double> histogram_bounds(std::string_view family, const HistogramBuckets& custom, uint32_t max_model_len) {
  if (const auto given = custom.find(std::string(family)); given != custom.end()) return given->second;
  const auto known = std::ranges::find(families(), family, &Family::name);
  CHECK(known != families().end(), "no histogram family " + std::string(family));
  return known->bounds.empty() ? one_two_five(max_model_len) : known->bounds;
}

Status check_histogram_buckets(const HistogramBuckets& buckets) {
  for (const auto& [name, bounds] : buckets) {
    if (std::ranges::find(families(), name, &Family::name) == families().end()) {
      return fail(ErrorCode::invalid_argument,
                  "--custom-histogram-buckets: no family '" + name + "'; there are " + known_names());
    }
    const bool finite = std::ranges::all_of(bounds, [](double bound) { return std::isfinite(bound); });
    const bool ascending = std::ranges::adjacent_find(bounds, std::greater_equal<>()) == bounds.end();
    if (bounds.empty() || !finite || !ascending) {
      return fail(ErrorCode::invalid_argument, "--custom-histogram-buckets: the bounds of '" + name +
                                                   "' are to be finite numbers, each above the one before; +Inf is "
                                                   "added by itself");
    }
  }
  return {};
}

}  // namespace kvarto
