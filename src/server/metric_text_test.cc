#include "server/metric_text.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kvarto {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// What Python's prometheus_client 0.26 makes of these numbers (floatToGoString).
TEST(MetricValue, IsWrittenLikePythons) {
  const std::vector<std::pair<double, std::string>> cases = {
      {0, "0.0"},
      {1, "1.0"},
      {0.3, "0.3"},
      {0.1 + 0.2, "0.30000000000000004"},
      {0.001, "0.001"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {0.0000125, "1.25e-05"},
      {16384, "16384.0"},
      {999999.5, "999999.5"},
      {1000000, "1e+06"},
      {1234567, "1.234567e+06"},
      {134217728, "1.34217728e+08"},
      {17179869184.0, "1.7179869184e+10"},
      {1795000000.5, "1.7950000005e+09"},
      {1e16, "1e+16"},
      {1.5e16, "1.5e+16"},
      {1e100, "1e+100"},
      {-1, "-1.0"},
      {-12345678, "-12345678.0"},
      {-0.0, "-0.0"},
      {std::numeric_limits<double>::infinity(), "+Inf"},
      {-std::numeric_limits<double>::infinity(), "-Inf"},
      {std::nan(""), "NaN"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(metric_value(value), text);
}

ClientMetric gauge(std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return metric;
}

TEST(MetricText, SortsAndEscapes) {
  std::vector<MetricFamily> families;
  families.push_back({.name = "b", .help = "two\nlines \\ \"quoted\"", .type = MetricType::Gauge, .metric = {}});
  families.back().metric.push_back(gauge({{"z", "2"}, {"a", "y"}}, 2));
  families.back().metric.push_back(gauge({{"z", "1"}, {"a", "q\"\\\n"}}, 1));
  families.push_back({.name = "empty", .help = "none", .type = MetricType::Gauge, .metric = {}});
  families.push_back({.name = "a", .help = "first", .type = MetricType::Gauge, .metric = {gauge({}, 3)}});
  EXPECT_EQ(metric_text(std::move(families)),
            "# HELP a first\n"
            "# TYPE a gauge\n"
            "a 3.0\n"
            "# HELP b two\\nlines \\\\ \"quoted\"\n"
            "# TYPE b gauge\n"
            "b{a=\"q\\\"\\\\\\n\",z=\"1\"} 1.0\n"
            "b{a=\"y\",z=\"2\"} 2.0\n");
}

TEST(MetricText, WritesHistogramsLikePythonsClient) {
  ClientMetric metric;
  metric.label = {{"engine", "0"}, {"model_name", "m"}};
  metric.histogram.sample_count = 3;
  metric.histogram.sample_sum = 4.5;
  metric.histogram.bucket = {{1, 0.3}, {2, 1}, {3, std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(metric_text({{.name = "h", .help = "x", .type = MetricType::Histogram, .metric = {metric}}}),
            "# HELP h x\n"
            "# TYPE h histogram\n"
            "h_bucket{engine=\"0\",le=\"0.3\",model_name=\"m\"} 1.0\n"
            "h_bucket{engine=\"0\",le=\"1.0\",model_name=\"m\"} 2.0\n"
            "h_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 3.0\n"
            "h_count{engine=\"0\",model_name=\"m\"} 3.0\n"
            "h_sum{engine=\"0\",model_name=\"m\"} 4.5\n");
}

}  // namespace
}  // namespace kvarto
