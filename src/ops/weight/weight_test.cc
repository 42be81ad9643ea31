#include "ops/weight/weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "format/gguf.h"

namespace kvarto {
namespace {

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Random blocks and their values, written by the gguf Python package.
const nlohmann::json& golden() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(KVARTO_SOURCE_DIR "/tests/golden/quant_vectors.json"));
  return json;
}

const WeightFormat* find_by_name(const std::string& name) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

std::vector<float> dequantize(const WeightFormat& format, const std::vector<std::byte>& bytes) {
  const size_t blocks = bytes.size() / format.block_bytes;
  std::vector<float> out(blocks * format.block_elements);
  format.dequantize(bytes.data(), blocks, out.data());
  return out;
}

std::vector<std::byte> random_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(WeightFormat, GoldenBlocksOfEveryType) {
  ASSERT_GE(golden().size(), 14u);
  for (const auto& [name, vectors] : golden().items()) {
    SCOPED_TRACE(name);
    const WeightFormat* format = find_by_name(name);
    ASSERT_NE(format, nullptr);
    EXPECT_EQ(format->block_elements, vectors["block_elems"].get<uint32_t>());
    EXPECT_EQ(format->block_bytes, vectors["block_bytes"].get<uint32_t>());
    for (const auto& block : vectors["blocks"]) {
      const std::vector<float> got = dequantize(*format, from_hex(block["hex"]));
      const std::vector<double> expected = block["values"];
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        // The file has seven digits; a float's own spacing is the floor for subnormals.
        ASSERT_NEAR(got[i], expected[i], 6e-7 * std::abs(expected[i]) + 1e-45) << "element " << i;
        ASSERT_EQ(std::signbit(got[i]), std::signbit(expected[i])) << "element " << i;
      }
    }
  }
}

TEST(WeightFormat, PlainFloats) {
  const std::vector<float> numbers{0.0f, -0.0f, 1.5f, -3.25e-7f, 1e38f};
  std::vector<std::byte> bytes(numbers.size() * 4);
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  EXPECT_EQ(dequantize(*find_by_name("F32"), bytes), numbers);
  // 1.0, -2.0, 65504 and 2^-24 as halves, little endian.
  EXPECT_EQ(dequantize(*find_by_name("F16"), from_hex("003c00c0ff7b0100")),
            (std::vector<float>{1.0f, -2.0f, 65504.0f, 0x1p-24f}));
  EXPECT_EQ(dequantize(*find_by_name("BF16"), from_hex("803f00c0803f")), (std::vector<float>{1.0f, -2.0f, 1.0f}));
}

// Exact small cases worked out by hand from the formulas, so that the order of the operations is pinned too.
TEST(WeightFormat, HandMadeBlocks) {
  // d = 1, all nibbles 0 but byte 0 = 0xf8.
  std::string q4_0 = "003cf8";
  for (int i = 1; i < 16; ++i) q4_0 += "88";
  std::vector<float> expected(32, 0.0f);
  expected[16] = 7.0f;
  EXPECT_EQ(dequantize(*find_by_name("Q4_0"), from_hex(q4_0)), expected);
  // d = 0.5, q = -128 and 127 first.
  std::string q8_0 = "0038807f";
  for (int i = 2; i < 32; ++i) q8_0 += "00";
  expected.assign(32, 0.0f);
  expected[0] = -64.0f;
  expected[1] = 63.5f;
  EXPECT_EQ(dequantize(*find_by_name("Q8_0"), from_hex(q8_0)), expected);
}

TEST(WeightFormat, Mxfp4ScalesAtBothEndsOfTheExponent) {
  const WeightFormat& mxfp4 = *find_by_name("MXFP4");
  std::string quants = "71";  // element 0: code 1 (0.5), element 16: code 7 (6.0)
  for (int i = 1; i < 16; ++i) quants += "00";
  const auto values = [&](const std::string& exponent) { return dequantize(mxfp4, from_hex(exponent + quants)); };
  EXPECT_EQ(values("00")[0], 0x1p-128f);  // 2^-127 * 0.5, subnormal
  EXPECT_EQ(values("00")[16], 0x1.8p-125f);
  EXPECT_EQ(values("01")[0], 0x1p-127f);
  EXPECT_EQ(values("7f")[16], 6.0f);
  EXPECT_EQ(values("fe")[0], 0x1p126f);
}

TEST(WeightFormat, ListAgreesWithTheFormatTable) {
  std::set<uint32_t> types;
  for (const WeightFormat& format : weight_formats()) {
    SCOPED_TRACE(std::string(format.name));
    EXPECT_TRUE(types.insert(format.gguf_type).second) << "listed twice";
    EXPECT_EQ(find_weight_format(format.gguf_type), &format);
    const GgufTypeInfo* info = gguf_type_info(format.gguf_type);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->name, format.name);
    EXPECT_EQ(info->block_elements, format.block_elements);
    EXPECT_EQ(info->block_bytes, format.block_bytes);
  }
  EXPECT_EQ(find_weight_format(24), nullptr);  // I8: known to files, not computed with
  EXPECT_EQ(find_weight_format(999), nullptr);
}

TEST(WeightFormat, ManyBlocksAreTheBlocksOneByOne) {
  for (const WeightFormat& format : weight_formats()) {
    SCOPED_TRACE(std::string(format.name));
    constexpr size_t kBlocks = 7;
    const std::vector<std::byte> bytes = random_bytes(kBlocks * format.block_bytes, format.gguf_type);
    const std::vector<float> whole = dequantize(format, bytes);
    std::vector<float> guarded(format.block_elements + 2, 42.0f);
    for (size_t b = 0; b < kBlocks; ++b) {
      format.dequantize(bytes.data() + b * format.block_bytes, 1, guarded.data() + 1);
      EXPECT_EQ(std::memcmp(guarded.data() + 1, whole.data() + b * format.block_elements, format.block_elements * 4),
                0);
    }
    EXPECT_EQ(guarded.front(), 42.0f);
    EXPECT_EQ(guarded.back(), 42.0f);
    format.dequantize(nullptr, 0, nullptr);
  }
}

// Scales that are NaN or infinite are a wrong file, not a crash: values come out non-finite or finite, nothing traps.
// Every 16-bit field of the block is set in turn, so that each scale of each format gets its chance.
TEST(WeightFormat, NonFiniteScalesDoNotCrash) {
  for (const WeightFormat& format : weight_formats()) {
    SCOPED_TRACE(std::string(format.name));
    size_t non_finite = 0;
    for (size_t at = 0; at + 2 <= format.block_bytes; at += 2) {
      for (const uint16_t scale : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e00}, uint16_t{0x7c01}}) {
        std::vector<std::byte> bytes = random_bytes(format.block_bytes, 7);
        std::memcpy(bytes.data() + at, &scale, 2);
        for (const float x : dequantize(format, bytes)) non_finite += !std::isfinite(x);
      }
    }
    const bool has_half_scale = format.block_elements > 1 && format.name != "MXFP4";
    if (has_half_scale) {
      EXPECT_GT(non_finite, 0u);
    }
  }
}

}  // namespace
}  // namespace kvarto
