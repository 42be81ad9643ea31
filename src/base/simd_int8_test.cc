// Every integer operation on every target against plain loops.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/simd_int8_test.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/dispatch.h"
#include "base/float_testing.h"
#include "base/simd_int8.h"

#ifndef KVARTO_BASE_SIMD_INT8_TEST_LANES_
#define KVARTO_BASE_SIMD_INT8_TEST_LANES_
namespace kvarto {

struct IntInput {
  uint8_t bytes[64], others[64];
  int8_t quads[8][4];
  int32_t ints[2][16];
  float floats[2][16];  // within +-130
};
struct IntOutput {
  uint8_t stored[64], low_nibble[64], high_nibble[64], bit_5_to_0[64], pair_2_to_4[64], bit_1_to_7[64], either[64];
  uint8_t looked_up[64];  // index: the low nibbles; table: the first 16 of the others
  int32_t wide[16], narrow[4][16], sum[16], product[16];
  float as_float[16], u8[16], i8[16];
  int8_t rounded[32];
  int32_t half_sums[2];
  uint32_t largest;
  bool below_100;
  int wide_zero;
};

struct IntProbe {
  void (*all)(const IntInput& in, IntOutput* out);
};

}  // namespace kvarto
#endif

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// As many quads as fit codes of kBits, from the ints on.
template <int kBits>
void narrow_dot(const IntInput& in, int32_t* out) {
  constexpr int kRun = dot_run((1 << kBits) - 1);
  const U8x64 codes = move_bits<0, 0, kBits>(load_u8(in.bytes));
  const I32x16 from = load_int(in.ints[0]);
  DotRun run = dot_start(from);
  for (int i = 0; i < (kRun < 8 ? kRun : 8); ++i) run = dot_add(run, codes, load_i8x4(in.quads[i]));
  store_int(dot_end(from, run), out);
}

void probe_all(const IntInput& in, IntOutput* out) {
  const U8x64 a = load_u8(in.bytes), b = load_u8(in.others);
  store_u8(a, out->stored);
  store_u8(move_bits<0, 0, 4>(a), out->low_nibble);
  store_u8(move_bits<4, 0, 4>(a), out->high_nibble);
  store_u8(move_bits<5, 0, 1>(a), out->bit_5_to_0);
  store_u8(move_bits<2, 4, 2>(a), out->pair_2_to_4);
  store_u8(move_bits<1, 7, 1>(a), out->bit_1_to_7);
  store_u8(a | b, out->either);
  store_u8(lookup(load_table(in.others), move_bits<0, 0, 4>(a)), out->looked_up);
  store_int(dot_wide(load_int(in.ints[0]), a, load_i8x4(in.quads[0])), out->wide);
  narrow_dot<2>(in, out->narrow[0]);
  narrow_dot<4>(in, out->narrow[1]);
  narrow_dot<5>(in, out->narrow[2]);
  narrow_dot<6>(in, out->narrow[3]);
  store_int(load_int(in.ints[0]) + load_int(in.ints[1]), out->sum);
  store_int(load_int(in.ints[0]) * splat_int(-128), out->product);
  store(to_float(load_int(in.ints[1])), out->as_float);
  store(load_u8_as_float(in.bytes), out->u8);
  store(load_i8_as_float(in.bytes), out->i8);
  const F32x16 x = load(in.floats[0]), y = load(in.floats[1]);
  store_i8(to_i8(round_even(x), round_even(y)), out->rounded);
  half_sums(load_i8(out->rounded), out->half_sums);
  out->largest = largest_magnitude(x, y);
  out->below_100 = all_below(x, 100.0f);
  out->wide_zero = kWideZero;
}
const IntProbe kIntProbe = {probe_all};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(IntProbe, int_probe, kIntProbe);

namespace {

int64_t plain_dot(const IntInput& in, size_t lane, int mask, int zero, int quads) {
  int64_t sum = in.ints[0][lane];
  for (int q = 0; q < quads; ++q) {
    for (size_t i = 0; i < 4; ++i) sum += ((in.bytes[4 * lane + i] & mask) - zero) * in.quads[q][i];
  }
  return sum;
}

void check(const IntInput& in) {
  for (SimdTarget target : available_targets()) {
    SCOPED_TRACE(simd_target_name(target));
    IntOutput got;
    int_probe(target).all(in, &got);
    for (size_t i = 0; i < 64; ++i) {
      const int v = in.bytes[i];
      ASSERT_EQ(got.stored[i], v);
      ASSERT_EQ(got.low_nibble[i], v % 16);
      ASSERT_EQ(got.high_nibble[i], v / 16);
      ASSERT_EQ(got.bit_5_to_0[i], v / 32 % 2);
      ASSERT_EQ(got.pair_2_to_4[i], v / 4 % 4 * 16);
      ASSERT_EQ(got.bit_1_to_7[i], v / 2 % 2 * 128);
      ASSERT_EQ(got.either[i], v | in.others[i]);
      ASSERT_EQ(got.looked_up[i], in.others[v % 16]);
    }
    for (size_t i = 0; i < 16; ++i) {
      ASSERT_EQ(got.wide[i], plain_dot(in, i, 255, got.wide_zero, 1));
      ASSERT_EQ(got.narrow[0][i], plain_dot(in, i, 3, 0, 8));
      ASSERT_EQ(got.narrow[1][i], plain_dot(in, i, 15, 0, 8));
      ASSERT_EQ(got.narrow[2][i], plain_dot(in, i, 31, 0, 4));
      ASSERT_EQ(got.narrow[3][i], plain_dot(in, i, 63, 0, 2));
      ASSERT_EQ(got.sum[i], in.ints[0][i] + in.ints[1][i]);
      ASSERT_EQ(got.product[i], in.ints[0][i] * -128);
      ASSERT_EQ(got.as_float[i], static_cast<float>(in.ints[1][i]));
      ASSERT_EQ(got.u8[i], in.bytes[i]);
      ASSERT_EQ(got.i8[i], in.bytes[i] < 128 ? in.bytes[i] : in.bytes[i] - 256);
    }
    int sums[2] = {};
    float largest = 0;
    for (size_t i = 0; i < 32; ++i) {
      const float x = in.floats[i / 16][i % 16];
      const auto limited = static_cast<int>(std::clamp(std::rint(x), -127.0f, 127.0f));
      ASSERT_EQ(got.rounded[i], limited) << i;
      sums[i / 16] += limited;
      largest = std::fmax(largest, std::fabs(x));
    }
    ASSERT_EQ(got.half_sums[0], sums[0]);
    ASSERT_EQ(got.half_sums[1], sums[1]);
    ASSERT_EQ(got.largest, std::bit_cast<uint32_t>(largest));
    ASSERT_EQ(got.below_100, std::all_of(in.floats[0], in.floats[0] + 16, [](float v) { return v < 100.0f; }));
  }
}

TEST(SimdInt8, EveryOperationOnEveryTarget) {
  FloatSource source(8);
  for (int round = 0; round < 1000; ++round) {
    IntInput in;
    for (uint8_t& v : in.bytes) v = static_cast<uint8_t>(source.size(0, 255));
    for (uint8_t& v : in.others) v = static_cast<uint8_t>(source.size(0, 255));
    for (auto& quad : in.quads) {
      for (int8_t& v : quad) v = static_cast<int8_t>(static_cast<int>(source.size(0, 254)) - 127);
    }
    for (auto& ints : in.ints) {
      for (int32_t& v : ints) v = static_cast<int32_t>(source.size(0, 1 << 24)) - (1 << 23);
    }
    const float limit = round % 2 == 0 ? 130.0f : 99.0f;
    for (auto& floats : in.floats) {
      for (float& v : floats) v = std::round(source.uniform(-limit, limit) * 2) / 2;  // many ties
    }
    check(in);
  }
}

TEST(SimdInt8, NothingSaturates) {
  for (const uint8_t code : {0, 127, 128, 255}) {
    for (const int sign : {-1, 0, 1}) {  // 0: alternating
      IntInput in{};
      std::fill(std::begin(in.bytes), std::end(in.bytes), code);
      for (auto& quad : in.quads) {
        for (int i = 0; i < 4; ++i) quad[i] = static_cast<int8_t>(127 * (sign != 0 ? sign : i % 2 * 2 - 1));
      }
      check(in);
    }
  }
}

TEST(SimdInt8, WhatIsNotFiniteIsLargest) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 32; ++at) {
      IntInput in{};
      in.floats[0][3] = 3e38f;
      in.floats[at / 16][at % 16] = bad;
      for (SimdTarget target : available_targets()) {
        IntOutput got;
        int_probe(target).all(in, &got);
        ASSERT_GE(got.largest, 0x7f800000u) << simd_target_name(target) << " " << at;
      }
    }
  }
}

}  // namespace
}  // namespace kvarto
#endif
