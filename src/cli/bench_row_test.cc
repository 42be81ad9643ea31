#include "cli/bench_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

BenchRow row_with(const Rates& rates) {
  return {.test = "tg8",
          .batch = 1,
          .threads = 2,
          .kv_dtype = "float16",
          .tokens_per_s = 10,
          .token_cost = {.int8_few = 4e9, .f32 = 1e9, .bytes = 2e9},
          .logits_sha256 = "00",
          .rates = rates};
}
const Rates kAll{.bytes = 40e9, .f32 = 100e9, .int8 = 400e9, .int8_few = 200e9, .sha256 = 1e9};

TEST(BenchRow, BoundsFollowFromTheRates) {
  // Reading takes 2/40 s a token, arithmetic 4/200 + 1/100.
  const nlohmann::json row = nlohmann::json::parse(bench_json({row_with(kAll)})).at(0);
  EXPECT_EQ(row.at("bound_by"), "memory");
  EXPECT_NEAR(row.at("bound_tokens_per_s").get<double>(), 20.0, 1e-9);
  EXPECT_NEAR(row.at("share_of_bound").get<double>(), 0.5, 1e-9);
  EXPECT_NEAR(row.at("share_of_int8").get<double>(), 0.2, 1e-9);
  EXPECT_NE(bounds_line(row_with(kAll)).find("memory"), std::string::npos);
}

TEST(BenchRow, WhatWasNotMeasuredBoundsNothing) {
  Rates rates = kAll;
  rates.bytes = 0;
  const nlohmann::json row = nlohmann::json::parse(bench_json({row_with(rates)})).at(0);
  for (const char* key : {"bandwidth_gb_s", "share_of_bandwidth", "bound_tokens_per_s", "bound_by", "share_of_bound"}) {
    EXPECT_TRUE(row.at(key).is_null()) << key;
  }
  EXPECT_NEAR(row.at("share_of_int8").get<double>(), 0.2, 1e-9);  // what is known stays
  const std::string line = bounds_line(row_with(rates));
  EXPECT_EQ(line.find("arithmetic"), std::string::npos) << line;
  EXPECT_EQ(line.size(), bounds_line(row_with(kAll)).size());
  EXPECT_NE(bench_rates(2, rates).find("2 threads: reads - GB/s, 100 GFLOP/s"), std::string::npos);
  EXPECT_FALSE(bound_known({.bytes = 1}, rates));
  EXPECT_TRUE(bound_known({.f32 = 1}, rates));  // nothing to read
}

}  // namespace
}  // namespace kvarto
