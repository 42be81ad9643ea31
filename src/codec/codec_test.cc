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

// Scores and mixes by every kernel of a list.
template <class Stored>
void expect_plain_loops(const DirectKernels& kernels, SubTiles keys, SubTiles values, const std::vector<float>& q,
                        const std::vector<float>& p, size_t dims, const Stored& stored) {
  const size_t padded = (dims + 15) / 16 * 16;
  for (size_t n = 1; n <= kernels.rows; ++n) {
    std::vector<float> scores(n * kScoreStride), mixed(n * padded, 0.5f);
    kernels.score[n - 1](q.data(), dims, keys, scores.data());
    kernels.mix[n - 1](p.data(), values, 18, 47, padded, mixed.data());
    for (size_t r = 0; r < n; ++r) {
      for (size_t t = 0; t < keys.count * 16; ++t) {
        float acc = 0;
        for (size_t d = 0; d < dims; ++d) acc = std::fma(q[d * n + r], stored(t, d), acc);
        ASSERT_EQ(scores[r * kScoreStride + t], acc);
      }
      for (size_t d = 0; d < dims; ++d) {
        float acc = 0.5f;
        for (size_t t = 18; t < 47; ++t) acc = std::fma(p[r * kScoreStride + t], stored(t, d), acc);
        ASSERT_EQ(mixed[r * padded + d], acc);
      }
      for (size_t d = dims; d < padded; ++d) ASSERT_EQ(mixed[r * padded + d], 0.5f);
    }
  }
}

// Scores and mixes of random sub-tiles, by any target, against plain loops with std::fma over values read back one by
// one.
TEST(CodecKernels, ScoreAndMixMatchPlainLoopsBitForBit) {
  for (const CodecInfo& info : codec_list()) {
    for (const SimdTarget target : available_targets()) {
      const CodecKernels& kernels = codec_kernels(target, info.dtype);
      for (const size_t dims : {16, 40, 64, 80, 256}) {
        SCOPED_TRACE(std::string(info.name) + " " + std::string(simd_target_name(target)) + " " + std::to_string(dims));
        const size_t padded = (dims + 15) / 16 * 16;
        constexpr size_t kTiles = 3;  // two side by side and one alone
        const size_t bytes = kernels.sub_tile_bytes(padded);
        std::vector<std::byte> keys(kTiles * bytes), values(keys.size());
        const std::vector<float> rows = normal(kTiles * 16 * dims, dims), q = normal(kMaxKernelRows * dims, dims + 1),
                                 p = normal(kMaxKernelRows * kScoreStride, 3);
        std::vector<const std::byte*> key_tiles, value_tiles;
        for (size_t i = 0; i < kTiles + kLookAhead; ++i) {
          key_tiles.push_back(keys.data() + i % kTiles * bytes);
          value_tiles.push_back(values.data() + i % kTiles * bytes);
        }
        for (size_t i = 0; i < kTiles; ++i) {
          for (const auto& [slot, tokens] : {std::pair<size_t, size_t>{0, 5}, {5, 1}, {6, 10}}) {
            const float* from = &rows[(i * 16 + slot) * dims];
            kernels.write_scored(from, dims, tokens, dims, padded, keys.data() + i * bytes, slot);
            kernels.write_mixed(from, dims, tokens, dims, padded, values.data() + i * bytes, slot);
          }
        }
        const auto stored = [&](size_t t, size_t d) {
          const float x = rows[t * dims + d];
          return info.dtype == KvDtype::f16    ? f16_to_f32(f32_to_f16(x))
                 : info.dtype == KvDtype::bf16 ? bf16_to_f32(f32_to_bf16(x))
                                               : x;
        };
        // As stored, then unsealed.
        std::vector<float> plain_keys(kTiles * 16 * padded), plain_values(plain_keys.size());
        std::vector<const std::byte*> plain_key_tiles, plain_value_tiles;
        for (size_t i = 0; i < kTiles; ++i) {
          float *k = &plain_keys[i * 16 * padded], *v = &plain_values[i * 16 * padded];
          kernels.unseal_scored(key_tiles[i], dims, k);
          kernels.unseal_mixed(value_tiles[i], padded, v);
          plain_key_tiles.push_back(reinterpret_cast<const std::byte*>(k));
          plain_value_tiles.push_back(reinterpret_cast<const std::byte*>(v));
        }
        const DirectKernels& unsealed = unsealed_kernels(target);
        expect_plain_loops(kernels.direct, {key_tiles.data(), kTiles}, {value_tiles.data(), kTiles}, q, p, dims,
                           stored);
        expect_plain_loops(unsealed, {plain_key_tiles.data(), kTiles}, {plain_value_tiles.data(), kTiles}, q, p, dims,
                           stored);
      }
    }
  }
}

TEST(CodecF16, SaturatesInsteadOfOverflowing) {
  const CodecKernels& kernels = codec_kernels(best_target(), KvDtype::f16);
  std::vector<std::byte> tile(kernels.sub_tile_bytes(16));
  const std::vector<float> row = {1e6f, -1e6f, 65504.0f, 65520.0f, INFINITY, 1e-9f, NAN, 65519.0f,
                                  0,    0,     0,        0,        0,        0,     0,   -70000.0f};
  EXPECT_EQ(kernels.write_scored(row.data(), 16, 1, 16, 16, tile.data(), 3), 5u);
  EXPECT_EQ(kernels.write_mixed(row.data(), 16, 1, 16, 16, tile.data(), 0), 5u);
  std::vector<float> out(16 * 16);
  kernels.unseal_mixed(tile.data(), 16, out.data());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 6),
            (std::vector<float>{65504, -65504, 65504, 65504, 65504, 0}));
}

}  // namespace
}  // namespace kvarto
