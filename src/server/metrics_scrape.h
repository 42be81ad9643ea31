// The series of /metrics that are made for each scrape, from running totals that others keep. Part of metrics.cc; pure
// functions, any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/metrics.h"

namespace prometheus {
struct MetricFamily;
}

namespace kvarto {

// What does not change from scrape to scrape.
struct ScrapeOptions {
  std::map<std::string, std::string> labels;        // of every series about the engine
  std::map<std::string, std::string> cache_config;  // labels of vllm:cache_config_info that are known beforehand
  std::vector<GroupKind> groups;                    // of the layout
  size_t kv_bytes_per_token = 0;
  std::vector<double> age_bounds;  // of blocks, seconds
  bool hidden_metrics = false;
};

std::vector<prometheus::MetricFamily> scraped_families(const MetricsSnapshot& snapshot, const ScrapeOptions& options);

}  // namespace kvarto
