// What a load run says at its end: a table, JSON, and a page with charts that needs nothing beside itself. Plain data
// to text; any thread.
#pragma once

#include <string>
#include <vector>

#include "cli/load_stats.h"

namespace kvarto {

struct LoadReport {
  std::string url, model, what;  // what: the workload and the loop in one line
  uint64_t seed = 1;
  bool stream = true, exact_lengths = true, interrupted = false;
  Slo slo = {};
  LoadSummary summary = {};
  const std::vector<LoadRecord>* records = nullptr;  // outlive the report
};

std::string load_table(const LoadReport& report);
std::string load_json(const LoadReport& report);
std::string load_html(const LoadReport& report);
// What a reader should know: requests that failed and why, lengths that were not hit, counts that are missing.
std::vector<std::string> load_remarks(const LoadReport& report);

}  // namespace kvarto
