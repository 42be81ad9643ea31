// The text of /metrics (Prometheus' text format 0.0.4) as Python's client library writes it, so that it looks like
// vLLM's to whoever parses it by hand: labels in alphabetical order, numbers and bucket bounds as Python floats
// (le="1.0"). Only this file, metrics_*.cc and their tests know prometheus-cpp. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace prometheus {
struct MetricFamily;
}

namespace kvarto {

// "1.0", "0.025", "1.34217728e+08", "+Inf": Python's repr, but with an exponent from seven digits before the point on.
std::string metric_value(double value);

// Families in the order of their names, series in the order of their labels. Families without series are left out.
std::string metric_text(std::vector<prometheus::MetricFamily> families);

}  // namespace kvarto
