#include "server/metric_text.h"

#include <prometheus/metric_family.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

namespace kvarto {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;

std::string_view type_name(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
    case MetricType::Summary:
    case MetricType::Untyped:
      break;
  }
  return "untyped";
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

// name_suffix{a="x",le="1.0",z="y"} value
void append_series(std::string& out, std::string_view name, std::string_view suffix, std::vector<Label> labels,
                   double value) {
  out += name;
  out += suffix;
  std::sort(labels.begin(), labels.end());  // Label has no more than operator<
  char before = '{';
  for (const Label& label : labels) {
    out += before;
    before = ',';
    out += label.name;
    out += "=\"";
    append_escaped(out, label.value, true);
    out += '"';
  }
  if (!labels.empty()) out += '}';
  out += ' ';
  out += metric_value(value);
  out += '\n';
}

void append_histogram(std::string& out, std::string_view name, const ClientMetric& metric) {
  for (const ClientMetric::Bucket& bucket : metric.histogram.bucket) {
    std::vector<Label> labels = metric.label;
    labels.push_back({"le", metric_value(bucket.upper_bound)});
    append_series(out, name, "_bucket", std::move(labels), static_cast<double>(bucket.cumulative_count));
  }
  append_series(out, name, "_count", metric.label, static_cast<double>(metric.histogram.sample_count));
  append_series(out, name, "_sum", metric.label, metric.histogram.sample_sum);
}

void append_family(std::string& out, MetricFamily& family) {
  out += "# HELP " + family.name + ' ';
  append_escaped(out, family.help, false);
  out += "\n# TYPE " + family.name + ' ';
  out += type_name(family.type);
  out += '\n';
  for (ClientMetric& metric : family.metric) std::sort(metric.label.begin(), metric.label.end());
  std::sort(family.metric.begin(), family.metric.end(),
            [](const ClientMetric& a, const ClientMetric& b) { return a.label < b.label; });
  for (const ClientMetric& metric : family.metric) {
    if (family.type == MetricType::Histogram) {
      append_histogram(out, family.name, metric);
    } else {
      append_series(out, family.name, "", metric.label,
                    family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value);
    }
  }
}

// The digits of the shortest decimal that reads back as `value` (finite, above 0), and its power of ten: 0.025 is "25"
// and -2.
std::pair<std::string, int> shortest_digits(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  std::string digits(text, end);
  const size_t e = digits.find('e');
  const int exponent = std::stoi(digits.substr(e + 1));
  digits.resize(e);
  std::erase(digits, '.');
  return {std::move(digits), exponent};
}

std::string with_exponent(const std::string& digits, int exponent) {
  std::string out = digits.substr(0, 1);
  if (digits.size() > 1) out += '.' + digits.substr(1);
  const std::string power = std::to_string(std::abs(exponent));
  out += exponent < 0 ? "e-" : "e+";
  return out + (power.size() < 2 ? "0" : "") + power;
}

}  // namespace

std::string metric_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  auto [digits, exponent] = shortest_digits(std::abs(value));
  const auto count = static_cast<int>(digits.size());
  // Python's own limit is 16 digits before the point; its client library takes 7 where the number is positive.
  const int most = value > 0 ? 6 : 16;
  std::string out;
  if (exponent < -4 || exponent >= most) {
    out = with_exponent(digits, exponent);
  } else if (exponent < 0) {
    out = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (count <= exponent + 1) {
    out = digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    out = digits.insert(static_cast<size_t>(exponent) + 1, ".");
  }
  return value < 0 ? "-" + out : out;
}

std::string metric_text(std::vector<MetricFamily> families) {
  std::ranges::sort(families, {}, &MetricFamily::name);
  std::string out;
  for (MetricFamily& family : families) {
    if (!family.metric.empty()) append_family(out, family);
  }
  return out;
}

}  // namespace kvarto
