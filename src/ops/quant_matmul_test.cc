// Quantised activations and products against plain loops written from the definition in ops/quant.h, on random file
// bytes of every format, bit for bit on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/float_testing.h"
#include "base/half.h"
#include "ops/quant.h"
#include "ops/quant_panel.h"
#include "ops/weight/list.h"

namespace kvarto {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -12345.0f;

// Bytes on whole lines.
class Lines {
 public:
  explicit Lines(size_t bytes) : memory_(bytes + 64) {}
  std::byte* data() {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<std::byte> memory_;
};

struct PlainRow {
  std::vector<int> codes;    // [inputs]
  std::vector<float> scale;  // [blocks]
};

struct Activations {
  Lines memory;
  QuantRows rows;
  Activations(SimdTarget target, const std::vector<float>& x, size_t row_count, size_t inputs)
      : memory(quant_rows_bytes(row_count, inputs)), rows(quant_rows_at(memory.data(), row_count, inputs)) {
    const size_t cut = row_count / 3;  // workers take any rows
    quant_ops(target).quantise(x.data(), cut, row_count, rows);
    quant_ops(target).quantise(x.data(), 0, cut, rows);
  }
  // Where block b of row r lies among the blocks of all rows.
  size_t at(size_t r, size_t b) const {
    const size_t tile = r / 16 * 16;
    return tile * rows.blocks() + b * std::min<size_t>(16, rows.rows - tile) + r % 16;
  }
  int32_t half_sum(size_t r, size_t b, size_t half) const {
    const size_t tile = r / 16 * 16, tile_rows = std::min<size_t>(16, rows.rows - tile);
    return rows.half_sums[2 * tile * rows.blocks() + (half * rows.blocks() + b) * tile_rows + r % 16];
  }
};

// --- activations

// Nearest integer to x / d, ties to even, found by comparing distances; the quotient is rounded to float once.
int nearest_code(float x, float d) {
  const float quotient = x / d;
  int best = -127;
  for (int code = -127; code <= 127; ++code) {
    const double distance = std::fabs(double{quotient} - code), least = std::fabs(double{quotient} - best);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

PlainRow plain_quantise(const float* x, size_t inputs) {
  PlainRow row;
  for (size_t first = 0; first < inputs; first += 32) {
    float amax = 0;
    bool finite = true;
    for (size_t i = first; i < first + 32; ++i) {
      finite &= std::isfinite(x[i]);
      amax = std::fmax(amax, std::fabs(x[i]));
    }
    const float d = finite ? amax / 127.0f : kNaN;
    row.scale.push_back(d);
    for (size_t i = first; i < first + 32; ++i) row.codes.push_back(finite && d != 0 ? nearest_code(x[i], d) : 0);
  }
  return row;
}

void check_quantise(const std::vector<float>& x, size_t row_count, size_t inputs) {
  for (SimdTarget target : available_targets()) {
    SCOPED_TRACE(simd_target_name(target));
    const Activations got(target, x, row_count, inputs);
    for (size_t r = 0; r < row_count; ++r) {
      const PlainRow want = plain_quantise(x.data() + r * inputs, inputs);
      for (size_t b = 0; b < inputs / 32; ++b) {
        const size_t at = got.at(r, b);
        ASSERT_TRUE(same_bits(got.rows.scale[at], want.scale[b])) << got.rows.scale[at] << " " << want.scale[b];
        int sums[2] = {};
        for (size_t i = 0; i < 32; ++i) {
          ASSERT_EQ(got.rows.codes[at * 32 + i], want.codes[b * 32 + i]) << "row " << r << " value " << b * 32 + i;
          sums[i / 16] += want.codes[b * 32 + i];
        }
        ASSERT_EQ(got.half_sum(r, b, 0), sums[0]);
        ASSERT_EQ(got.half_sum(r, b, 1), sums[1]);
        const float scaled_sum = want.scale[b] * static_cast<float>(sums[0] + sums[1]);
        ASSERT_TRUE(same_bits(got.rows.scaled_sum[at], scaled_sum));
      }
    }
  }
}

TEST(Quantise, EqualsTheFormula) {
  FloatSource source(1);
  for (size_t row_count : {1, 2, 15, 16, 17, 33}) {
    std::vector<float> x(row_count * 96);
    for (float& v : x) v = source.uniform(-3, 3);
    check_quantise(x, row_count, 96);
    for (float& v : x) v *= std::ldexp(1.0f, static_cast<int>(source.size(0, 240)) - 140);
    check_quantise(x, row_count, 96);
    for (float& v : x) v = source.awkward();
    check_quantise(x, row_count, 96);
  }
}

TEST(Quantise, TheLargestMayStandAnywhere) {
  std::vector<float> x(32 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
  for (size_t r = 0; r < 64; ++r) x[r * 32 + r % 32] = r < 32 ? 63.5f : -63.5f;
  check_quantise(x, 64, 32);
}

TEST(Quantise, TiesGoToEven) {
  std::vector<float> x(32);
  x[0] = 127.0f;  // d = 1
  for (size_t i = 1; i < 32; ++i) x[i] = static_cast<float>(i) - 16.5f;
  check_quantise(x, 1, 32);
  const Activations got(SimdTarget::scalar, x, 1, 32);
  EXPECT_EQ(got.rows.codes[16], 0);   // -0.5
  EXPECT_EQ(got.rows.codes[17], 0);   // 0.5
  EXPECT_EQ(got.rows.codes[18], 2);   // 1.5
  EXPECT_EQ(got.rows.codes[14], -2);  // -2.5
}

// Quotients on and next to ties, where a product with 1 / d may fall on the other side.
TEST(Quantise, DivisionDecidesNearTies) {
  FloatSource source(9);
  std::vector<float> x(32 * 256);
  for (int round = 0; round < 20; ++round) {
    for (size_t first = 0; first < x.size(); first += 32) {
      const float amax = source.uniform(0.5f, 1.0f) * std::ldexp(1.0f, static_cast<int>(source.size(0, 200)) - 120);
      const float d = amax / 127.0f;
      x[first] = amax;
      for (size_t i = 1; i < 32; ++i) {
        float tie = d * (static_cast<float>(source.size(0, 252)) - 126.5f);
        for (size_t step = source.size(0, 3); step > 0; --step) tie = std::nextafter(tie, i % 2 == 0 ? -kInf : kInf);
        x[first + i] = std::clamp(tie, -amax, amax);
      }
    }
    check_quantise(x, 8, 1024);
  }
}

TEST(Quantise, ZerosSubnormalsAndWhatIsNotFinite) {
  std::vector<float> x(32 * 8);
  x[1] = -0.0f;
  x[32] = 1e-45f;              // amax / 127 rounds to zero
  x[64 + 5] = 190 * 1.4e-45f;  // the scale rounds down to one unit: 190 is limited to 127
  x[96 + 9] = -0x1p-126f;      // the scale is subnormal
  x[96 + 10] = 0x1p-128f;
  x[128 + 31] = kInf;
  x[160 + 16] = -kInf;
  x[192] = kNaN;
  x[224 + 31] = -kNaN;
  x[224 + 30] = kInf;
  check_quantise(x, 1, 256);
  const Activations got(SimdTarget::scalar, x, 1, 256);
  EXPECT_EQ(got.rows.scale[0], 0.0f);
  EXPECT_EQ(got.rows.scale[1], 0.0f);
  EXPECT_EQ(got.rows.codes[64 + 5], 127);
  for (size_t b = 4; b < 8; ++b) {
    EXPECT_TRUE(std::isnan(got.rows.scale[b]));
    EXPECT_TRUE(std::isnan(got.rows.scaled_sum[b]));
  }
}

// --- products

struct Problem {
  const WeightFormat& format;
  size_t outputs, inputs;
  std::vector<std::byte> file;
  QuantMatrix matrix;
  Lines packed{0};
  std::vector<float> bias;

  size_t row_bytes() const { return inputs / format.block_elements * format.block_bytes; }

  Problem(const WeightFormat& f, size_t outputs_, size_t inputs_, std::vector<std::byte> file_, FloatSource& source)
      : format(f), outputs(outputs_), inputs(inputs_), file(std::move(file_)) {
    matrix = {outputs, inputs, format.quant, nullptr};
    packed = Lines(matrix.bytes());
    matrix.data = packed.data();
    for (size_t g = 0; g < matrix.groups(); ++g) {
      pack_quant_group(matrix, file.data() + g * 16 * row_bytes(), row_bytes(), format.block_bytes,
                       format.block_elements, std::min<size_t>(16, outputs - g * 16),
                       packed.data() + g * matrix.group_bytes());
    }
    for (size_t i = 0; i < outputs; ++i) bias.push_back(source.uniform(-1, 1));
  }
};

// Any bytes are a block; but half-precision scales shall be numbers of a middling size.
std::vector<std::byte> random_file(const WeightFormat& format, size_t rows, size_t inputs, FloatSource& source) {
  const size_t blocks = rows * inputs / format.block_elements;
  std::vector<std::byte> file(blocks * format.block_bytes);
  for (std::byte& b : file) b = static_cast<std::byte>(source.size(0, 255));
  for (size_t i = 0; i < blocks; ++i) {
    std::byte* block = file.data() + i * format.block_bytes;
    // Where the formats keep their f16: at the start, at the end, or both of two.
    for (size_t at : {size_t{0}, size_t{2}, size_t{format.block_bytes} - 2, size_t{format.block_bytes} - 4}) {
      block[at + 1] = static_cast<std::byte>((static_cast<uint8_t>(block[at + 1]) & 0x83) | 0x2c);
    }
  }
  return file;
}

// The definition, one output at a time.
float plain_output(const Problem& p, const PlainRow& x, size_t output, bool with_bias) {
  const QuantShape& shape = p.format.quant->shape;
  float acc = with_bias ? p.bias[output] : 0.0f, accm = 0.0f;
  for (size_t b = 0; b < p.inputs / 32; ++b) {
    QuantBlock w{};
    const size_t per_file_block = p.format.block_elements / 32;
    p.format.quant->unpack(p.file.data() + output * p.row_bytes() + b / per_file_block * p.format.block_bytes,
                           b % per_file_block, w);
    int64_t dots[2] = {}, sums[2] = {};
    for (size_t i = 0; i < 32; ++i) {
      const int code = shape.table ? p.format.quant->table[w.code[i]] : w.code[i];
      dots[i / 16] += (code - shape.zero) * x.codes[b * 32 + i];
      sums[i / 16] += x.codes[b * 32 + i];
    }
    float dw = f16_to_f32(w.d), dm = f16_to_f32(w.m);
    int64_t dot = dots[0] + dots[1], sum = sums[0] + sums[1];
    switch (shape.scale) {
      case QuantScale::half:
      case QuantScale::half_min:
        break;
      case QuantScale::single:
        dw = w.single;
        break;
      case QuantScale::super:
        dw = dw * static_cast<float>(static_cast<int8_t>(w.scale[0]));
        break;
      case QuantScale::super_min:
        dw = dw * static_cast<float>(w.scale[0]);
        dm = dm * static_cast<float>(w.minimum[0]);
        break;
      case QuantScale::super16:
        dot = static_cast<int8_t>(w.scale[0]) * dots[0] + static_cast<int8_t>(w.scale[1]) * dots[1];
        break;
      case QuantScale::super16_min:
        dot = w.scale[0] * dots[0] + w.scale[1] * dots[1];
        sum = w.minimum[0] * sums[0] + w.minimum[1] * sums[1];
        break;
    }
    EXPECT_LT(std::abs(dot), 1 << 24);
    const float weight = dw * x.scale[b];
    acc = std::fma(static_cast<float>(dot), weight, acc);
    if (has_minimum(shape.scale)) {
      const float scaled_sum = x.scale[b] * static_cast<float>(sum);
      accm = std::fma(dm, scaled_sum, accm);
    }
  }
  return has_minimum(shape.scale) ? acc + accm : acc;
}

// All targets, the groups in two parts, against the definition; y has a gap behind every row and ends at the end of
// readable memory.
void check(const Problem& p, const std::vector<float>& x, size_t row_count, bool with_bias, FloatSource& source) {
  std::vector<PlainRow> plain;
  for (size_t r = 0; r < row_count; ++r) plain.push_back(plain_quantise(x.data() + r * p.inputs, p.inputs));
  std::vector<float> want(row_count * p.outputs);
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] = plain_output(p, plain[i / p.outputs], i % p.outputs, with_bias);
  }
  const size_t groups = p.matrix.groups(), cut = source.size(0, groups), y_stride = p.outputs + source.size(0, 3);
  Lines scratch(quant_scratch_bytes(p.inputs));
  for (SimdTarget target : available_targets()) {
    Activations a(target, x, row_count, p.inputs);
    FencedFloats y((row_count - 1) * y_stride + p.outputs, kUntouched);
    for (auto [first, last] : {std::pair(cut, groups), std::pair(size_t{0}, cut)}) {
      if (first == last) continue;
      quant_ops(target).matmul(a.rows, p.matrix, with_bias ? p.bias.data() : nullptr, first, last, y.data(), y_stride,
                               scratch.data());
    }
    for (size_t i = 0; i < y.all().size(); ++i) {
      const size_t r = i / y_stride, o = i % y_stride;
      const float expected = o < p.outputs ? want[r * p.outputs + o] : kUntouched;
      ASSERT_TRUE(same_bits(y[i], expected))
          << p.format.name << " " << simd_target_name(target) << " rows " << row_count << " inputs " << p.inputs
          << " at " << r << "," << o << " of " << p.outputs << ": " << y[i] << " " << expected;
    }
  }
}

std::vector<float> random_rows(size_t n, FloatSource& source) {
  std::vector<float> x(n);
  for (float& v : x) v = source.uniform(-2, 2);
  return x;
}

class QuantMatmul : public testing::TestWithParam<const WeightFormat*> {};

TEST_P(QuantMatmul, EveryTargetEqualsTheDefinitionBitForBit) {
  FloatSource source(2);
  const WeightFormat& format = *GetParam();
  const size_t unit = std::max<size_t>(format.block_elements, 32);
  for (size_t row_count : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 24, 33, 64}) {
    const size_t outputs = source.size(1, 70), inputs = unit * source.size(1, unit == 32 ? 9 : 2);
    const Problem p(format, outputs, inputs, random_file(format, outputs, inputs, source), source);
    check(p, random_rows(row_count * inputs, source), row_count, row_count % 2 == 0, source);
  }
}

TEST_P(QuantMatmul, NothingSaturates) {
  FloatSource source(3);
  const WeightFormat& format = *GetParam();
  const size_t inputs = std::max<size_t>(format.block_elements, 32);
  std::vector<float> x(18 * inputs);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / inputs;  // all 127, all -127, alternating
    x[i] = (row % 3 == 0 || (row % 3 == 1 && i % 2 == 0)) ? 1.0f : -1.0f;
  }
  for (const uint8_t fill : {0xff, 0x00, 0x7f, 0x80, 0x0f, 0xf0, 0x77, 0x88}) {
    std::vector<std::byte> file = random_file(format, 16, inputs, source);
    for (std::byte& b : file) b = static_cast<std::byte>(fill);
    // Scales at their most are infinite or NaN where they are f16: numbers instead.
    const size_t blocks = file.size() / format.block_bytes;
    for (size_t i = 0; i < blocks; ++i) {
      std::byte* block = file.data() + i * format.block_bytes;
      const std::byte high{0x3c}, low{0x00};
      const bool behind = format.name == "Q6_K" || format.name == "Q3_K" || format.name == "Q2_K";
      const size_t at = behind ? format.block_bytes - (format.name == "Q2_K" ? 4 : 2) : 0;
      if (format.name == "MXFP4") continue;
      block[at] = low;
      block[at + 1] = high;
      if (has_minimum(format.quant->shape.scale)) {
        block[at + 2] = low;
        block[at + 3] = high;
      }
    }
    const Problem p(format, 16, inputs, std::move(file), source);
    check(p, std::vector<float>(x.begin(), x.begin() + static_cast<ptrdiff_t>(3 * inputs)), 3, false, source);
    check(p, x, 18, false, source);
  }
}

TEST_P(QuantMatmul, ARowDoesNotDependOnTheOthers) {
  FloatSource source(4);
  const WeightFormat& format = *GetParam();
  const size_t inputs = 2 * std::max<size_t>(format.block_elements, 32), outputs = 40, most = 70;
  const Problem p(format, outputs, inputs, random_file(format, outputs, inputs, source), source);
  const std::vector<float> x = random_rows(most * inputs, source);
  Lines scratch(quant_scratch_bytes(inputs));
  for (SimdTarget target : available_targets()) {
    std::vector<float> all(most * outputs), some(all.size());
    Activations whole(target, x, most, inputs);
    quant_ops(target).matmul(whole.rows, p.matrix, nullptr, 0, p.matrix.groups(), all.data(), outputs, scratch.data());
    for (size_t count : {1, 3, 4, 6, 15, 16, 31}) {
      const size_t first = source.size(0, most - count);
      Activations part(target, {x.begin() + static_cast<ptrdiff_t>(first * inputs), x.end()}, count, inputs);
      quant_ops(target).matmul(part.rows, p.matrix, nullptr, 0, p.matrix.groups(), some.data(), outputs,
                               scratch.data());
      ASSERT_EQ(std::memcmp(some.data(), all.data() + first * outputs, count * outputs * sizeof(float)), 0)
          << simd_target_name(target) << " rows " << count;
    }
  }
}

TEST_P(QuantMatmul, ARowWithInfinityIsNaNAndHarmsNoOther) {
  FloatSource source(5);
  const WeightFormat& format = *GetParam();
  const size_t inputs = std::max<size_t>(format.block_elements, 32);
  const Problem p(format, 16, inputs, random_file(format, 16, inputs, source), source);
  for (size_t count : {2, 18}) {
    std::vector<float> x = random_rows(count * inputs, source);
    x[inputs + 7] = kInf;
    check(p, x, count, true, source);
  }
}

// Rows in several chunks: more than stay in the second-level cache at once.
TEST_P(QuantMatmul, ManyRowsComeInChunks) {
  FloatSource source(6);
  const WeightFormat& format = *GetParam();
  if (format.name != "Q4_1" && format.name != "Q8_0" && format.name != "Q2_K" && format.name != "Q6_K") return;
  constexpr size_t kInputs = 12288, kRows = 70, kOutputs = 20;
  const Problem p(format, kOutputs, kInputs, random_file(format, kOutputs, kInputs, source), source);
  check(p, random_rows(kRows * kInputs, source), kRows, true, source);
}

TEST_P(QuantMatmul, PanelsHoldTheCodesAndScales) {
  FloatSource source(7);
  const WeightFormat& format = *GetParam();
  const QuantShape& shape = format.quant->shape;
  const size_t inputs = 256, blocks = 8, per_file_block = std::max<size_t>(1, format.block_elements / 32);
  const Problem p(format, 32, inputs, random_file(format, 32, inputs, source), source);
  for (SimdTarget target : available_targets()) {
    Lines memory(quant_panel_bytes(blocks));
    const QuantPanel panel = quant_panel_at(memory.data(), blocks);
    panel_unpacker(target, shape)(p.matrix, 1, panel);
    for (size_t o = 0; o < 16; ++o) {
      for (size_t b = 0; b < blocks; ++b) {
        QuantBlock w{};
        format.quant->unpack(p.file.data() + (16 + o) * p.row_bytes() + b / per_file_block * format.block_bytes,
                             b % per_file_block, w);
        for (size_t i = 0; i < 32; ++i) {
          const int code = shape.table ? format.quant->table[w.code[i]] : w.code[i];
          ASSERT_EQ(panel.codes[b * 512 + i / 4 * 64 + o * 4 + i % 4], code) << simd_target_name(target);
        }
        // dw, [dm], [two scales], [two minima]
        const float* scales = panel.scales + o;
        size_t next = b * PanelScales(shape.scale).count();
        const auto signed_scale = [&](size_t half) { return static_cast<float>(static_cast<int8_t>(w.scale[half])); };
        float dw = f16_to_f32(w.d), dm = f16_to_f32(w.m);
        if (shape.scale == QuantScale::single) dw = w.single;
        if (shape.scale == QuantScale::super) dw *= signed_scale(0);
        if (shape.scale == QuantScale::super_min) dw *= w.scale[0];
        if (shape.scale == QuantScale::super_min) dm *= w.minimum[0];
        ASSERT_TRUE(same_bits(scales[16 * next++], dw));
        if (has_minimum(shape.scale)) {
          ASSERT_TRUE(same_bits(scales[16 * next++], dm));
        }
        if (shape.scale == QuantScale::super16) {
          for (size_t half = 0; half < 2; ++half) ASSERT_EQ(scales[16 * next++], signed_scale(half));
        }
        if (shape.scale == QuantScale::super16_min) {
          for (size_t half = 0; half < 2; ++half) ASSERT_EQ(scales[16 * next++], w.scale[half]);
          for (size_t half = 0; half < 2; ++half) ASSERT_EQ(scales[16 * next++], w.minimum[half]);
        }
      }
    }
  }
}

std::vector<const WeightFormat*> quantised_formats() {
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat& format : weight::kList) {
    if (format.quant != nullptr) formats.push_back(&format);
  }
  return formats;
}
INSTANTIATE_TEST_SUITE_P(Formats, QuantMatmul, testing::ValuesIn(quantised_formats()),
                         [](const auto& row) { return std::string(row.param->name); });

// What is reserved for the widest matrix serves every other: the planner knows only that one.
TEST(QuantMatmulScratch, NeverFallsAsInputsGrow) {
  size_t scratch = 0, rows = 0;
  for (size_t inputs = kQuantBlock; inputs <= 65536; inputs += kQuantBlock) {
    EXPECT_GE(quant_scratch_bytes(inputs), scratch) << inputs;
    EXPECT_GE(quant_rows_bytes(40, inputs), rows) << inputs;
    EXPECT_GE(quant_rows_bytes(41, inputs), quant_rows_bytes(40, inputs)) << inputs;
    scratch = quant_scratch_bytes(inputs);
    rows = quant_rows_bytes(40, inputs);
  }
}

}  // namespace
}  // namespace kvarto
