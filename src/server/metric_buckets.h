// Bounds of vLLM's histograms, and what --custom-histogram-buckets may replace. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvarto {

using HistogramBuckets = std::map<std::string, std::vector<double>>;  // by family

// The bounds of a family (one of vLLM's names for them: "request_latency", "time_to_first_token",
// "inter_token_latency", "iteration_tokens", "request_params_n", "request_num_preemptions", "kv_cache_residency",
// "request_tokens"), custom ones first.
std::vector<double> histogram_bounds(std::string_view family, const HistogramBuckets& custom, uint32_t max_model_len);

}  // namespace kvarto
