// One row of `kvarto bench`: what was measured and what bounds it, as lines of two tables and as JSON. Plain data; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/step_cost.h"

namespace kvarto {

struct BenchRow {
  std::string test;
  uint64_t depth = 0;
  uint32_t batch = 0;
  int threads = 0;
  std::string kv_dtype;
  double tokens_per_s = 0;
  Cost token_cost;  // on average
  std::string logits_sha256;
  Rates rates;  // of the same run and as many threads
};

// Whether the rates that a cost needs were measured: what is unknown bounds nothing.
bool memory_known(const Cost& cost, const Rates& rates);
bool int8_known(const Cost& cost, const Rates& rates);
bool f32_known(const Cost& cost, const Rates& rates);
bool bound_known(const Cost& cost, const Rates& rates);

// What was measured; the line can be shown before the rates are known.
std::string bench_head();
std::string bench_line(const BenchRow& row);
// What bounds it.
std::string bounds_head();
std::string bounds_line(const BenchRow& row);
std::string bench_rates(int threads, const Rates& rates);  // a line
std::string bench_json(const std::vector<BenchRow>& rows);
// What the columns mean: for the help.
std::string_view bench_explanation();

}  // namespace kvarto
