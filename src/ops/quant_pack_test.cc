#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ops/quant.h"
#include "ops/weight/weight.h"

namespace kvarto {
namespace {

using Bytes = std::vector<std::byte>;

// Where the float16 fields of a file's block lie.
const std::map<std::string_view, std::vector<size_t>>& half_fields() {
  static const std::map<std::string_view, std::vector<size_t>> fields{
      {"Q4_0", {0}},      {"Q4_1", {0, 2}}, {"Q5_0", {0}},    {"Q5_1", {0, 2}}, {"Q8_0", {0}},
      {"Q2_K", {80, 82}}, {"Q3_K", {108}},  {"Q4_K", {0, 2}}, {"Q5_K", {0, 2}}, {"Q6_K", {208}},
      {"IQ4_NL", {0}},    {"IQ4_XS", {0}},  {"MXFP4", {}}};
  return fields;
}

// `rows` rows of random blocks with finite scales, `gap` bytes apart; the last row ends with the vector.
Bytes random_rows(const WeightFormat& format, size_t rows, size_t inputs, size_t gap, std::mt19937& random) {
  const size_t blocks = inputs / format.block_elements;
  const size_t row_bytes = blocks * format.block_bytes + gap;
  Bytes bytes(rows * row_bytes - gap);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t field : half_fields().at(format.name)) {
        std::byte& high = bytes[r * row_bytes + b * format.block_bytes + field + 1];
        if ((high & std::byte{0x7c}) == std::byte{0x7c}) high ^= std::byte{0x04};
      }
    }
  }
  return bytes;
}

// A whole matrix packed over memory that was not clean.
struct Packed {
  QuantMatrix matrix;
  Bytes memory;

  Packed(const QuantFormat& format, size_t outputs, size_t inputs, const std::byte* rows, size_t row_bytes,
         size_t block_bytes, size_t block_elements) {
    matrix.outputs = outputs;
    matrix.inputs = inputs;
    matrix.format = &format;
    memory.assign(matrix.bytes(), std::byte{0xcc});
    matrix.data = memory.data();
    for (size_t g = 0; g < matrix.groups(); ++g) {
      const size_t first = g * kQuantOutputs;
      pack_quant_group(matrix, rows + first * row_bytes, row_bytes, block_bytes, block_elements,
                       std::min(kQuantOutputs, outputs - first), memory.data() + g * matrix.group_bytes());
    }
  }
};

void rows_come_back(const WeightFormat& format, size_t outputs, size_t inputs, std::mt19937& random) {
  SCOPED_TRACE(std::string(format.name) + " " + std::to_string(outputs) + " x " + std::to_string(inputs));
  constexpr size_t kGap = 3;
  const Bytes file = random_rows(format, outputs, inputs, kGap, random);
  const size_t blocks = inputs / format.block_elements;
  const size_t row_bytes = blocks * format.block_bytes + kGap;
  const Packed packed(*format.quant, outputs, inputs, file.data(), row_bytes, format.block_bytes,
                      format.block_elements);
  std::vector<float> expected(inputs), got(inputs);
  for (size_t o = 0; o < outputs; ++o) {
    for (float factor : {1.0f, 2.5f}) {
      format.dequantize(file.data() + o * row_bytes, blocks, expected.data());
      for (float& v : expected) v *= factor;
      gather_quant_row(packed.matrix, o, factor, got.data());
      ASSERT_EQ(got, expected) << "output " << o << " factor " << factor;
      ASSERT_EQ(std::memcmp(got.data(), expected.data(), inputs * sizeof(float)), 0) << "signs of zeros, output " << o;
    }
  }
}

TEST(QuantPack, RowsComeBackAsTheFormatDequantizesThem) {
  std::mt19937 random(4);
  size_t formats = 0;
  for (const WeightFormat& format : weight_formats()) {
    EXPECT_EQ(format.quant != nullptr, half_fields().contains(format.name)) << format.name;
    if (format.quant == nullptr) continue;
    ++formats;
    EXPECT_EQ(format.quant->shape.table, format.quant->table != nullptr) << format.name;
    for (size_t outputs : {1, 16, 17, 40}) {
      for (size_t inputs : {32, 96, 256, 512}) {
        if (inputs % format.block_elements == 0) rows_come_back(format, outputs, inputs, random);
      }
    }
  }
  EXPECT_EQ(formats, 13u);
}

// A made-up file format whose blocks of 64 weights are two QuantBlocks as they lie, so that the layout can be checked
// for any shape without the real formats' bits.
constexpr size_t kPlainElements = 64;
constexpr size_t kPlainBytes = 2 * sizeof(QuantBlock);

void unpack_plain(const std::byte* in, size_t index, QuantBlock& out) {
  std::memcpy(&out, in + index * sizeof(QuantBlock), sizeof out);
}

using Blocks = std::vector<QuantBlock>;  // [outputs][blocks]

Blocks random_blocks(size_t count, unsigned bits, std::mt19937& random) {
  Blocks blocks(count);
  for (QuantBlock& b : blocks) {
    for (uint8_t& code : b.code) code = static_cast<uint8_t>(random() & ((1u << bits) - 1));
    b.d = static_cast<uint16_t>(random());
    b.m = static_cast<uint16_t>(random());
    b.single = static_cast<float>(random());
    for (size_t half = 0; half < 2; ++half) {
      b.scale[half] = static_cast<uint8_t>(random());
      b.minimum[half] = static_cast<uint8_t>(random());
    }
  }
  return blocks;
}

Packed pack_plain(const QuantFormat& format, const Blocks& blocks, size_t outputs) {
  const size_t per_row = blocks.size() / outputs;
  return Packed(format, outputs, per_row * kQuantBlock, reinterpret_cast<const std::byte*>(blocks.data()),
                per_row * sizeof(QuantBlock), kPlainBytes, kPlainElements);
}

// The byte that the layout comment gives to vector `v`, byte `at` of a block of 16 outputs; `code(o, input)`.
template <typename Code>
unsigned expected_byte(unsigned bits, size_t v, size_t at, Code code) {
  const auto quad = [&](size_t j) { return code(at / 4, 4 * j + at % 4); };
  if (bits == 8) return quad(v);
  if (bits >= 4) {
    if (v < 4) return quad(2 * v) % 16 + quad(2 * v + 1) % 16 * 16;
    v -= 4;
  }
  if (bits != 5) {
    const unsigned unit = bits == 6 ? 16 : 1;
    const auto pair = [&](size_t t) { return quad(4 * v + t) / unit % 4; };
    if (v < 2) return pair(0) + 4 * pair(1) + 16 * pair(2) + 64 * pair(3);
  }
  unsigned byte = 0;
  const unsigned unit = bits == 3 ? 4 : 16;
  for (size_t j = 0; j < 8; ++j) byte += (quad(j) / unit % 2) << j;
  return byte;
}

// All fields of one kind, 16 outputs after each other, zero where there is no output.
template <typename Field>
void append(Bytes& to, size_t outputs, Field field) {
  for (size_t o = 0; o < kQuantOutputs; ++o) {
    const auto value = o < outputs ? field(o) : decltype(field(o)){};
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    to.insert(to.end(), p, p + sizeof value);
  }
}

// One group written straight from the comments of quant.h, field by field.
Bytes expected_group(const QuantShape& shape, const Blocks& all, size_t outputs) {
  const size_t blocks = all.size() / outputs;
  const auto block = [&](size_t o, size_t b) -> const QuantBlock& { return all[o * blocks + b]; };
  Bytes bytes;
  for (size_t b = 0; b < blocks; ++b) {
    const auto code = [&](size_t o, size_t k) -> unsigned { return o < outputs ? block(o, b).code[k] : 0; };
    for (size_t v = 0; v < shape.bits; ++v) {
      for (size_t at = 0; at < 64; ++at)
        bytes.push_back(static_cast<std::byte>(expected_byte(shape.bits, v, at, code)));
    }
  }
  const QuantScale kind = shape.scale;
  for (size_t b = 0; b < blocks; ++b) {
    const auto d = [&](size_t o) { return block(o, b).d; };
    const auto m = [&](size_t o) { return block(o, b).m; };
    const auto single = [&](size_t o) { return block(o, b).single; };
    const auto s0 = [&](size_t o) { return block(o, b).scale[0]; };
    const auto s1 = [&](size_t o) { return block(o, b).scale[1]; };
    const auto m0 = [&](size_t o) { return block(o, b).minimum[0]; };
    const auto m1 = [&](size_t o) { return block(o, b).minimum[1]; };
    if (kind == QuantScale::half || kind == QuantScale::half_min) append(bytes, outputs, d);
    if (kind == QuantScale::half_min) append(bytes, outputs, m);
    if (kind == QuantScale::single) append(bytes, outputs, single);
    if (has_super(kind)) append(bytes, outputs, s0);
    if (has_halves(kind)) append(bytes, outputs, s1);
    if (kind == QuantScale::super_min || kind == QuantScale::super16_min) append(bytes, outputs, m0);
    if (kind == QuantScale::super16_min) append(bytes, outputs, m1);
  }
  for (size_t b = 0; has_super(kind) && b < blocks; b += 8) {
    append(bytes, outputs, [&](size_t o) { return block(o, b).d; });
    if (has_minimum(kind)) append(bytes, outputs, [&](size_t o) { return block(o, b).m; });
  }
  while (bytes.size() % 64 != 0) bytes.push_back(std::byte{0});
  return bytes;
}

// Every number of bits with every kind of scales, 1 to 16 outputs: missing outputs and padding are zero.
TEST(QuantPack, LayoutIsTheCommentsOfQuantH) {
  std::mt19937 random(5);
  for (unsigned bits : {2, 3, 4, 5, 6, 8}) {
    for (int kind = 0; kind <= static_cast<int>(QuantScale::super16_min); ++kind) {
      for (size_t outputs : {1, 5, 16}) {
        const QuantShape shape{static_cast<uint8_t>(bits), false, 0, static_cast<QuantScale>(kind)};
        const QuantFormat format{shape, nullptr, unpack_plain};
        const Blocks blocks = random_blocks(outputs * (has_super(shape.scale) ? 16 : 6), bits, random);
        const Packed packed = pack_plain(format, blocks, outputs);
        ASSERT_EQ(packed.memory, expected_group(shape, blocks, outputs))
            << bits << " bits, scale kind " << kind << ", " << outputs << " outputs";
      }
    }
  }
}

// Bytes worked out by hand: what output 2 has in the vectors of one block, and nothing else but zeros.
void block_is(unsigned bits, uint8_t (*code)(size_t input), const std::vector<std::vector<uint8_t>>& vectors) {
  SCOPED_TRACE(std::to_string(bits) + " bits");
  const QuantFormat format{{static_cast<uint8_t>(bits), false, 0, QuantScale::half_min}, nullptr, unpack_plain};
  Blocks blocks(3 * 2, QuantBlock{});
  for (size_t i = 0; i < 32; ++i) blocks[4].code[i] = code(i);
  blocks[4].d = 0x1234;
  blocks[4].m = 0x5678;
  const Packed packed = pack_plain(format, blocks, 3);
  Bytes expected(packed.memory.size());
  ASSERT_EQ(vectors.size(), bits);
  for (size_t v = 0; v < bits; ++v) std::memcpy(expected.data() + 64 * v + 8, vectors[v].data(), 4);
  const size_t scales = 2 * 64 * bits;
  expected[scales + 4] = std::byte{0x34};
  expected[scales + 5] = std::byte{0x12};
  expected[scales + 36] = std::byte{0x78};
  expected[scales + 37] = std::byte{0x56};
  EXPECT_EQ(packed.memory, expected);
}

TEST(QuantPack, BlocksWorkedOutByHand) {
  using V = std::vector<uint8_t>;
  const V none{0, 0, 0, 0};
  block_is(8, [](size_t i) { return static_cast<uint8_t>(200 + i); },
           {{200, 201, 202, 203},
            {204, 205, 206, 207},
            {208, 209, 210, 211},
            {212, 213, 214, 215},
            {216, 217, 218, 219},
            {220, 221, 222, 223},
            {224, 225, 226, 227},
            {228, 229, 230, 231}});
  // 0, 1, .. 15, then 15, 14, .. 0.
  block_is(4, [](size_t i) { return static_cast<uint8_t>(i < 16 ? i : 31 - i); },
           {{0x40, 0x51, 0x62, 0x73}, {0xc8, 0xd9, 0xea, 0xfb}, {0xbf, 0xae, 0x9d, 0x8c}, {0x37, 0x26, 0x15, 0x04}});
  // Quads 0 to 3 are 0123 1230 2301 3012, so are 4 to 7, but the last code is 0 instead of 2.
  block_is(2, [](size_t i) { return static_cast<uint8_t>(i == 31 ? 0 : (i / 4 + i) % 4); },
           {{0xe4, 0x39, 0x4e, 0x93}, {0xe4, 0x39, 0x4e, 0x13}});
  // Inputs 0, 5 and 31 have the highest bit: quad 0, byte 0; quad 1, byte 1; quad 7, byte 3.
  block_is(3, [](size_t i) { return static_cast<uint8_t>(i == 0 || i == 5 || i == 31 ? 4 : 0); },
           {none, none, {0x01, 0x02, 0x00, 0x80}});
  block_is(5, [](size_t i) { return static_cast<uint8_t>(i == 0 || i == 5 || i == 31 ? 16 : 0); },
           {none, none, none, none, {0x01, 0x02, 0x00, 0x80}});
  block_is(6, [](size_t i) { return static_cast<uint8_t>(i == 31 ? 0 : 16 * ((i / 4 + i) % 4)); },
           {none, none, none, none, {0xe4, 0x39, 0x4e, 0x93}, {0xe4, 0x39, 0x4e, 0x13}});
}

TEST(QuantRows, AreasFollowEachOtherOnWholeLines) {
  for (size_t rows : {1, 3, 64}) {
    for (size_t inputs : {32, 96, 896}) {
      const size_t blocks = rows * inputs / 32;
      std::byte* const memory = reinterpret_cast<std::byte*>(0x10000);
      const QuantRows q = quant_rows_at(memory, rows, inputs);
      EXPECT_EQ(q.rows, rows);
      EXPECT_EQ(q.inputs, inputs);
      const auto at = [&](const void* p) { return static_cast<size_t>(static_cast<const std::byte*>(p) - memory); };
      EXPECT_EQ(at(q.codes), 0u);
      EXPECT_GE(at(q.scale), rows * inputs + 15 * 32);  // what a whole tile's last block reads beyond one row
      EXPECT_GE(at(q.scaled_sum), at(q.scale) + 4 * blocks);
      EXPECT_GE(at(q.half_sums), at(q.scaled_sum) + 4 * blocks);
      EXPECT_GE(quant_rows_bytes(rows, inputs), at(q.half_sums) + 8 * blocks);
      EXPECT_LT(quant_rows_bytes(rows, inputs),
                rows * inputs + 16 * 32 + 16 * blocks + 4 * 64);  // less than a line each
      for (size_t offset : {at(q.scale), at(q.scaled_sum), at(q.half_sums)}) EXPECT_EQ(offset % 64, 0u);
    }
  }
}

}  // namespace
}  // namespace kvarto
