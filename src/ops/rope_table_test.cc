// Expected numbers come from tools/make_math_goldens.py (mpmath, 60 digits).
#include "ops/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvarto {
namespace {

struct Row {
  std::vector<float> cos, sin;
};

Row row_of(const RopeTable& table, uint64_t position) {
  Row row{std::vector<float>(table.pairs()), std::vector<float>(table.pairs())};
  table.fill(position, row.cos.data(), row.sin.data());
  return row;
}

RopeTable table_of(const RopeSpec& spec) {
  Result<RopeTable> table = RopeTable::make(spec);
  EXPECT_TRUE(table) << table.error().message;
  return *table;
}

TEST(RopeTable, CosAndSinAreTheNearestFloats) {
  const struct {
    double base;
    uint32_t dims, pair;
    uint64_t position;
    double cos, sin;
  } kGoldens[] = {
      {10000, 64, 0, 1, 0.5403023058681398, 0.8414709848078965},
      {10000, 64, 1, 4095, -0.08991008860191882, -0.9959498862731976},
      {10000, 64, 31, 131071, 0.19851170290724632, -0.9800985173995853},
      {1000000, 128, 0, 1000000, 0.9367521275331447, -0.34999350217129294},
      {1000000, 128, 7, 999983, -0.5011408227344808, -0.8653657468313659},
      {500000, 64, 3, 8388607, 0.9250742164683237, -0.3797863794628725},
      {1000000, 256, 100, 40000, 0.6811896060996286, 0.7321070417239769},
  };
  for (const auto& g : kGoldens) {
    const Row row = row_of(table_of({.base = g.base, .dims = g.dims}), g.position);
    EXPECT_EQ(row.cos[g.pair], static_cast<float>(g.cos)) << g.position;
    EXPECT_EQ(row.sin[g.pair], static_cast<float>(g.sin)) << g.position;
  }
}

TEST(RopeTable, PositionZeroTurnsNothing) {
  const Row row = row_of(table_of({.dims = 96}), 0);
  EXPECT_EQ(row.cos, std::vector<float>(48, 1.0f));
  EXPECT_EQ(row.sin, std::vector<float>(48, 0.0f));
}

// At position 1 the angle is the inverse frequency itself, at most 1 here: asin(sin) gives it back.
std::vector<double> inverse_frequencies(const RopeTable& table) {
  const Row row = row_of(table, 1);
  std::vector<double> out;
  for (size_t i = 0; i < row.sin.size(); ++i) out.push_back(std::atan2(row.sin[i], row.cos[i]));
  return out;
}

TEST(RopeTable, YarnFrequencies) {
  const double kYarn[32] = {1.0,
                            0.7498942093324559,
                            0.5623413251903491,
                            0.4216965034285822,
                            0.31622776601683794,
                            0.23713737056616552,
                            0.1778279410038923,
                            0.1333521432163324,
                            0.1,
                            0.07498942093324558,
                            0.05623413251903491,
                            0.03900692656714386,
                            0.026879360111431223,
                            0.018378146218877827,
                            0.01244795587027246,
                            0.008334508951020775,
                            0.0055,
                            0.003561997494329165,
                            0.0022493653007613964,
                            0.0013705136361428923,
                            0.0007905694150420948,
                            0.0004149903984907897,
                            0.00017782794100389227,
                            3.33380358040831e-05,
                            2.5e-05,
                            1.8747355233311396e-05,
                            1.4058533129758728e-05,
                            1.0542412585714557e-05,
                            7.905694150420949e-06,
                            5.9284342641541385e-06,
                            4.445698525097307e-06,
                            3.33380358040831e-06};
  const RopeTable table = table_of({.base = 10000,
                                    .dims = 64,
                                    .scaling = RopeSpec::Scaling::yarn,
                                    .factor = 40,
                                    .original_context = 4096,
                                    .attention_factor = 1 / (1 + 0.1 * std::log(40.0))});
  const std::vector<double> got = inverse_frequencies(table);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(got[i] / kYarn[i], 1.0, 2e-7) << i;
  // Published for DeepSeek-V2's settings.
  EXPECT_NEAR(got[5], 2.371374e-1, 1e-6);
  EXPECT_NEAR(got[20], 7.905694e-4, 1e-9);
  EXPECT_NEAR(got[31], 3.333804e-6, 1e-11);
}

TEST(RopeTable, YarnMagnitude) {
  RopeSpec spec{.dims = 64, .scaling = RopeSpec::Scaling::yarn, .factor = 40, .original_context = 4096};
  EXPECT_NEAR(row_of(table_of(spec), 0).cos[0], 1.36888794541139, 1e-7);  // 1 + 0.1 ln 40
  spec.attention_factor = 0.5;
  EXPECT_NEAR(row_of(table_of(spec), 0).cos[0], 0.684443972705695, 1e-7);
}

TEST(RopeTable, LinearScalingDividesPositions) {
  const RopeTable plain = table_of({.base = 1e6, .dims = 128});
  const RopeTable scaled = table_of({.base = 1e6, .dims = 128, .scaling = RopeSpec::Scaling::linear, .factor = 8});
  for (uint64_t position : {1, 77, 4000}) {  // division by 8 is exact
    const Row a = row_of(plain, position), b = row_of(scaled, position * 8);
    EXPECT_EQ(a.cos, b.cos);
    EXPECT_EQ(a.sin, b.sin);
  }
}

TEST(RopeTable, DivisorsSlowSinglePairs) {
  std::vector<float> divisors(32, 1.0f);
  divisors[3] = 4.0f;
  const std::vector<double> plain = inverse_frequencies(table_of({.dims = 64}));
  const std::vector<double> got = inverse_frequencies(table_of({.dims = 64, .divisors = divisors}));
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(got[i] * divisors[i], plain[i], 3e-7 * plain[i]) << i;
}

TEST(RopeTable, RefusesWhatMakesNoSense) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  using Scaling = RopeSpec::Scaling;
  const RopeSpec kBad[] = {
      {.dims = 0},
      {.dims = 63},
      {.base = 0, .dims = 64},
      {.base = -1, .dims = 64},
      {.base = kInf, .dims = 64},
      {.base = std::nan(""), .dims = 64},
      {.dims = 64, .scaling = Scaling::linear, .factor = 0},
      {.dims = 64, .scaling = Scaling::linear, .factor = kInf},
      {.dims = 64, .scaling = Scaling::yarn, .factor = 4, .original_context = 0},
      {.base = 1, .dims = 64, .scaling = Scaling::yarn, .factor = 4, .original_context = 4096},
      {.dims = 64, .scaling = Scaling::yarn, .factor = 4, .original_context = 4096, .beta_fast = 0},
      {.dims = 64, .divisors = std::vector<float>(31, 1.0f)},
      {.dims = 64, .divisors = std::vector<float>(32, 0.0f)},
  };
  for (const RopeSpec& spec : kBad) {
    const Result<RopeTable> table = RopeTable::make(spec);
    ASSERT_FALSE(table) << &spec - kBad;
    EXPECT_EQ(table.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(table.error().message.find('\n'), std::string::npos);
  }
  EXPECT_NE(RopeTable::make({.dims = 63}).error().message.find("63"), std::string::npos);
}

}  // namespace
}  // namespace kvarto
