#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvarto {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

struct Rounding {
  uint32_t from;  // float bits
  uint16_t to;
};

// The value of a code by the definition of the format, in double.
double value_of(uint16_t code, int exponent_bits, int mantissa_bits) {
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (code & 0x8000) ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(F16, EveryCodeWidensToItsValueAndComesBack) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t h = static_cast<uint16_t>(code);
    const double expected = value_of(h, 5, 10);
    const float wide = f16_to_f32(h);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << code;
      const uint16_t back = f32_to_f16(wide);
      ASSERT_TRUE((back & 0x7c00) == 0x7c00 && (back & 0x3ff) != 0) << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << code;
    ASSERT_EQ(std::signbit(wide), (code & 0x8000) != 0) << code;
    if (!std::isinf(expected)) {
      ASSERT_EQ(f32_to_f16(wide), h) << code;
    }
  }
}

TEST(Bf16, EveryCodeWidensToItsValueAndComesBack) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t h = static_cast<uint16_t>(code);
    const double expected = value_of(h, 8, 7);
    const float wide = bf16_to_f32(h);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << code;
      ASSERT_EQ(f32_to_bf16(wide), h | 0x40) << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << code;
    ASSERT_EQ(std::signbit(wide), (code & 0x8000) != 0) << code;
    ASSERT_EQ(f32_to_bf16(wide), h) << code;
  }
}

// Expected codes: Python, struct.pack('<e', x), which rounds to nearest even.
TEST(F16, RoundsToNearestEven) {
  constexpr Rounding kCases[] = {
      {0x00000000u, 0x0000},  // 0.0
      {0x80000000u, 0x8000},  // -0.0
      {0x3f800000u, 0x3c00},  // 1.0
      {0xc0000000u, 0xc000},  // -2.0
      {0x3eaaaaabu, 0x3555},  // 0.33333334
      {0x3dcccccdu, 0x2e66},  // 0.1
      {0x40490fdbu, 0x4248},  // 3.1415927
      {0x477fe000u, 0x7bff},  // 65504.0
      {0x477fefffu, 0x7bff},  // 65519.996
      {0x3f801000u, 0x3c00},  // 1 + 2^-11, tie
      {0x3f803000u, 0x3c02},  // 1 + 3 * 2^-11, tie
      {0x3f801001u, 0x3c01},  // just above a tie
      {0x3f800fffu, 0x3c00},  // just below a tie
      {0xbf801000u, 0xbc00},  // -(1 + 2^-11), tie
      {0x44fff000u, 0x6800},  // 2047.5, tie that carries into the exponent
      {0x45000800u, 0x6800},  // 2048.5
      {0x45001000u, 0x6800},  // 2049, tie
      {0x45003000u, 0x6802},  // 2051, tie
      {0x457ff000u, 0x6c00},  // 4095, tie that carries into the exponent
      {0x45801800u, 0x6c01},  // 4099
      {0x45803000u, 0x6c02},  // 4102, tie
      {0x38800000u, 0x0400},  // 2^-14, smallest normal
      {0x387fe000u, 0x0400},  // 2^-14 - 2^-25, tie between subnormal and normal
      {0x387ff000u, 0x0400},  // 2^-14 - 2^-26
      {0x387fc000u, 0x03ff},  // largest subnormal
      {0x387fa000u, 0x03fe},  // 1022.5 * 2^-24, tie
      {0x387fda40u, 0x03ff},  // 6.1e-05
      {0x33800000u, 0x0001},  // 2^-24, smallest subnormal
      {0x33000000u, 0x0000},  // 2^-25, tie
      {0x33000001u, 0x0001},  // just above 2^-25
      {0x32800000u, 0x0000},  // 2^-26
      {0x33c00000u, 0x0002},  // 1.5 * 2^-24, tie
      {0x34200000u, 0x0002},  // 2.5 * 2^-24, tie
      {0x00000001u, 0x0000},  // smallest float
      {0x33d6bf95u, 0x0002},  // 1e-07
      {0x42f6e979u, 0x57b7},  // 123.456
      {0xba7ffbceu, 0x9400},  // -0.0009765
  };
  for (const Rounding& c : kCases) EXPECT_EQ(f32_to_f16(std::bit_cast<float>(c.from)), c.to) << std::hex << c.from;
}

TEST(F16, MidpointsOfAllNeighboursGoToTheEvenOne) {
  for (uint16_t h = 0; h < 0x7bff; ++h) {
    const double low = value_of(h, 5, 10);
    const double high = value_of(static_cast<uint16_t>(h + 1), 5, 10);
    const float middle = static_cast<float>((low + high) / 2);  // exact: 12 significant bits
    ASSERT_EQ(f32_to_f16(middle), h % 2 == 0 ? h : h + 1) << h;
    ASSERT_EQ(f32_to_f16(-middle), (h % 2 == 0 ? h : h + 1) | 0x8000) << h;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), h) << h;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, kInf)), h + 1) << h;
  }
}

TEST(F16, SaturatesInsteadOfOverflowing) {
  for (const float x : {65504.0f, 65519.996f, 65520.0f, 65536.0f, 1e10f, std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(f32_to_f16(x), 0x7bff) << x;
    EXPECT_EQ(f32_to_f16(-x), 0xfbff) << x;
  }
}

TEST(F16, NanStaysNan) {
  for (const uint32_t u : {0x7fc00000u, 0x7f800001u, 0xffc00000u, 0xff800001u, 0x7fffffffu}) {
    const uint16_t h = f32_to_f16(std::bit_cast<float>(u));
    EXPECT_EQ(h & 0x7c00, 0x7c00) << u;
    EXPECT_NE(h & 0x3ff, 0) << u;
    EXPECT_EQ(h >> 15, u >> 31) << u;
  }
}

// Expected codes: Python with exact fractions (nearer neighbour, even one on ties).
TEST(Bf16, RoundsToNearestEven) {
  constexpr Rounding kCases[] = {
      {0x00000000u, 0x0000}, {0x80000000u, 0x8000}, {0x3f800000u, 0x3f80}, {0x3f808000u, 0x3f80},  // tie
      {0x3f808001u, 0x3f81}, {0x3f807fffu, 0x3f80}, {0x3f818000u, 0x3f82},                         // tie
      {0x3f818001u, 0x3f82}, {0x3f817fffu, 0x3f81}, {0xbf808000u, 0xbf80}, {0xbf818000u, 0xbf82},
      {0x3fff8000u, 0x4000},  // tie that carries into the exponent
      {0x3fff7fffu, 0x3fff}, {0x40490fdbu, 0x4049}, {0x3eaaaaabu, 0x3eab}, {0x3dcccccdu, 0x3dcd},
      {0x00000001u, 0x0000},  // subnormals from here
      {0x00008000u, 0x0000}, {0x00008001u, 0x0001}, {0x00018000u, 0x0002}, {0x007fffffu, 0x0080},
      {0x007f8000u, 0x0080}, {0x80017fffu, 0x8001}, {0x7f7f0000u, 0x7f7f},  // the largest finite code
      {0x7f7f7fffu, 0x7f7f}, {0x7f7f8000u, 0x7f80},                         // overflow to infinity
      {0x7f7fffffu, 0x7f80}, {0xff7fffffu, 0xff80}, {0x7f800000u, 0x7f80}, {0xff800000u, 0xff80},
  };
  for (const Rounding& c : kCases) EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(c.from)), c.to) << std::hex << c.from;
}

TEST(Bf16, NanStaysNanEvenWhenItsPayloadLiesInTheLowBits) {
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0xff800001u)), 0xffc0);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7fffffffu)), 0x7fff);
  EXPECT_EQ(bits(bf16_to_f32(0x7fc0)), 0x7fc00000u);
}

}  // namespace
}  // namespace kvarto
