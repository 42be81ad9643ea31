// Conformance of every codec in the list: rounding, layout of tiles, kernels against plain loops, targets against each
// other.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/half.h"
#include "codec/kernels.h"
#include "codec/list.h"

namespace kvarto {
namespace {

std::vector<float> normal(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> d;
  std::vector<float> x(n);
  for (float& value : x) value = d(random);
  return x;
}

TEST(CodecList, NamesAndAliasesFindTheirRow) {
  for (const CodecInfo& info : codec_list()) {
    EXPECT_EQ(find_codec(info.name), &info);
    for (const std::string_view alias : info.aliases) EXPECT_EQ(find_codec(alias), &info);
    EXPECT_EQ(&codec_info(info.dtype), &info);
    EXPECT_EQ(info.tile_bytes(16, 64) % 64, 0u);
    EXPECT_GE(info.tile_bytes(16, 64) * 8, size_t{16} * 64 * info.bits);
  }
  EXPECT_EQ(find_codec("float8"), nullptr);
  EXPECT_EQ(find_codec("f16")->dtype, KvDtype::f16);
}

// Scores and mixes of a random sub-tile, by any target, against plain loops with std::fma over values read back one by
// one.
TEST(CodecKernels, ScoreAndMixMatchPlainLoopsBitForBit) {
  for (const CodecInfo& info : codec_list()) {
    for (const SimdTarget target : available_targets()) {
      const CodecKernels& kernels = codec_kernels(target, info.dtype);
      for (const size_t dims : {16, 40, 64, 80, 256}) {
        SCOPED_TRACE(std::string(info.name) + " " + std::string(simd_target_name(target)) + " " + std::to_string(dims));
        const size_t padded = (dims + 15) / 16 * 16;
        std::vector<std::byte> keys(kernels.sub_tile_bytes(padded)), values(keys.size());
        const std::vector<float> rows = normal(16 * dims, dims), q = normal(8 * dims, dims + 1), p = normal(8 * 16, 3);
        for (size_t t = 0; t < 16; ++t) {
          kernels.write_scored(&rows[t * dims], dims, padded, keys.data(), t);
          kernels.write_mixed(&rows[t * dims], dims, padded, values.data(), t);
        }
        const auto stored = [&](size_t t, size_t d) {
          const float x = rows[t * dims + d];
          return info.dtype == KvDtype::f16    ? f16_to_f32(f32_to_f16(x))
                 : info.dtype == KvDtype::bf16 ? bf16_to_f32(f32_to_bf16(x))
                                               : x;
        };
        for (size_t n = 1; n <= kMaxKernelRows; ++n) {
          std::vector<float> scores(n * 16), mixed(n * padded, 0.5f);
          kernels.score(n, q.data(), dims, dims, keys.data(), scores.data(), 16);
          kernels.mix(n, p.data(), 16, 2, 15, padded, values.data(), mixed.data(), padded);
          for (size_t r = 0; r < n; ++r) {
            for (size_t t = 0; t < 16; ++t) {
              float acc = 0;
              for (size_t d = 0; d < dims; ++d) acc = std::fma(q[r * dims + d], stored(t, d), acc);
              ASSERT_EQ(scores[r * 16 + t], acc);
            }
            for (size_t d = 0; d < dims; ++d) {
              float acc = 0.5f;
              for (size_t t = 2; t < 15; ++t) acc = std::fma(p[r * 16 + t], stored(t, d), acc);
              ASSERT_EQ(mixed[r * padded + d], acc);
            }
            for (size_t d = dims; d < padded; ++d) ASSERT_EQ(mixed[r * padded + d], 0.5f);
          }
        }
      }
    }
  }
}

TEST(CodecF16, SaturatesInsteadOfOverflowing) {
  const CodecKernels& kernels = codec_kernels(best_target(), KvDtype::f16);
  std::vector<std::byte> tile(kernels.sub_tile_bytes(16));
  const std::vector<float> row = {1e6f, -1e6f, 65504.0f, 65520.0f, INFINITY, 1e-9f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  kernels.write_mixed(row.data(), 16, 16, tile.data(), 0);
  const float one = 1.0f;
  std::vector<float> out(16, 0.0f);
  kernels.mix(1, &one, 1, 0, 1, 16, tile.data(), out.data(), 16);
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 6),
            (std::vector<float>{65504, -65504, 65504, 65504, 65504, 0}));
}

}  // namespace
}  // namespace kvarto
