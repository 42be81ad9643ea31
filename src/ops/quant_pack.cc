// Packs quantised weights into groups of 16 outputs and reads rows back; cuts the memory of quantised activations.
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "ops/quant.h"
#include "ops/weight/bits.h"

namespace kvarto {
namespace {

using weight::kEachByte;
using weight::load;
using weight::load_f16;

constexpr size_t kVector = 64;
constexpr size_t kQuads = kQuantBlock / 4;
constexpr size_t kF16s = 2 * kQuantOutputs;  // bytes of a float16 per output

template <typename T>
void put(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

constexpr uint32_t in_each(uint32_t mask) { return static_cast<uint32_t>(mask * kEachByte); }

// Which planes `bits` has and where their bits lie in a code; their order is the order in memory.
constexpr bool has_four(size_t bits) { return bits >= 4 && bits <= 6; }
constexpr bool has_two(size_t bits) { return bits == 2 || bits == 3 || bits == 6; }
constexpr bool has_one(size_t bits) { return bits == 3 || bits == 5; }
constexpr size_t two_at(size_t bits) { return bits == 6 ? 4 : 0; }
constexpr size_t one_at(size_t bits) { return bits - 1; }

// The four bytes of one output in each vector of a block; `out` is at the first of them.
template <size_t kBits>
void pack_codes(const uint8_t* code, std::byte* out) {
  uint32_t quads[kQuads];
  std::memcpy(quads, code, sizeof quads);
  if constexpr (kBits == 8) {
    for (size_t j = 0; j < kQuads; ++j) put(out + kVector * j, quads[j]);
  }
  if constexpr (has_four(kBits)) {
    for (size_t v = 0; v < 4; ++v, out += kVector) {
      put(out, (quads[2 * v] & in_each(15)) | (quads[2 * v + 1] & in_each(15)) << 4);
    }
  }
  if constexpr (has_two(kBits)) {
    for (size_t v = 0; v < 2; ++v, out += kVector) {
      uint32_t bytes = 0;
      for (size_t t = 0; t < 4; ++t) bytes |= (quads[4 * v + t] >> two_at(kBits) & in_each(3)) << 2 * t;
      put(out, bytes);
    }
  }
  if constexpr (has_one(kBits)) {
    uint32_t bytes = 0;
    for (size_t j = 0; j < kQuads; ++j) bytes |= (quads[j] >> one_at(kBits) & in_each(1)) << j;
    put(out, bytes);
  }
}

// The inverse, for any number of bits.
void unpack_codes(size_t bits, const std::byte* in, uint8_t* code) {
  uint32_t quads[kQuads] = {};
  if (bits == 8) {
    for (size_t j = 0; j < kQuads; ++j) quads[j] = load<uint32_t>(in + kVector * j);
  }
  if (has_four(bits)) {
    for (size_t j = 0; j < kQuads; ++j) {
      quads[j] |= load<uint32_t>(in + kVector * (j / 2)) >> 4 * (j % 2) & in_each(15);
    }
    in += 4 * kVector;
  }
  if (has_two(bits)) {
    for (size_t j = 0; j < kQuads; ++j) {
      quads[j] |= (load<uint32_t>(in + kVector * (j / 4)) >> 2 * (j % 4) & in_each(3)) << two_at(bits);
    }
    in += 2 * kVector;
  }
  if (has_one(bits)) {
    for (size_t j = 0; j < kQuads; ++j) quads[j] |= (load<uint32_t>(in) >> j & in_each(1)) << one_at(bits);
  }
  std::memcpy(code, quads, sizeof quads);
}

void pack_scales(QuantScale kind, const QuantBlock& block, size_t output, std::byte* out) {
  switch (kind) {
    case QuantScale::half_min:
      put(out + kF16s + 2 * output, block.m);
      [[fallthrough]];
    case QuantScale::half:
      put(out + 2 * output, block.d);
      return;
    case QuantScale::single:
      put(out + 4 * output, block.single);
      return;
    case QuantScale::super_min:
      put(out + kQuantOutputs + output, block.minimum[0]);
      [[fallthrough]];
    case QuantScale::super:
      put(out + output, block.scale[0]);
      return;
    case QuantScale::super16_min:
      put(out + 2 * kQuantOutputs + output, block.minimum[0]);
      put(out + 3 * kQuantOutputs + output, block.minimum[1]);
      [[fallthrough]];
    case QuantScale::super16:
      put(out + output, block.scale[0]);
      put(out + kQuantOutputs + output, block.scale[1]);
      return;
  }
}

// What the halves of a block have: weight = scale * (code - zero) + minimum.
struct BlockScales {
  float scale[2];
  float minimum[2];
};

// `scales` and `supers` are those of the block, for its 16 outputs.
BlockScales read_scales(QuantScale kind, const std::byte* scales, const std::byte* supers, size_t output) {
  const auto both = [](float scale, float minimum) { return BlockScales{{scale, scale}, {minimum, minimum}}; };
  const auto u8 = [&](size_t row) { return static_cast<float>(load<uint8_t>(scales + row * kQuantOutputs + output)); };
  const auto i8 = [&](size_t row) { return static_cast<float>(load<int8_t>(scales + row * kQuantOutputs + output)); };
  const auto d = [&] { return load_f16(supers + 2 * output); };
  const auto n = [&] { return load_f16(supers + kF16s + 2 * output); };
  switch (kind) {
    case QuantScale::half:
      return both(load_f16(scales + 2 * output), 0);
    case QuantScale::half_min:
      return both(load_f16(scales + 2 * output), load_f16(scales + kF16s + 2 * output));
    case QuantScale::single:
      return both(load<float>(scales + 4 * output), 0);
    case QuantScale::super:
      return both(d() * i8(0), 0);
    case QuantScale::super_min:
      return both(d() * u8(0), n() * u8(1));
    case QuantScale::super16:
      return {{d() * i8(0), d() * i8(1)}, {}};
    case QuantScale::super16_min:
      return {{d() * u8(0), d() * u8(1)}, {n() * u8(2), n() * u8(3)}};
  }
  return {};
}

// File blocks outside, outputs inside: the group is written once, front to back, from 16 streams of the file.
template <size_t kBits>
void pack_group(const QuantMatrix& w, const std::byte* rows, size_t row_bytes, size_t file_block_bytes,
                size_t blocks_per_file_block, size_t outputs, std::byte* out) {
  const QuantFormat& format = *w.format;
  const QuantScale kind = format.shape.scale;
  std::byte* codes = out;
  std::byte* scales = out + w.scales_offset();
  std::byte* supers = out + w.supers_offset();
  QuantBlock block;
  for (size_t b = 0; b < w.blocks(); rows += file_block_bytes) {
    for (size_t index = 0; index < blocks_per_file_block; ++index, ++b) {
      for (size_t o = 0; o < outputs; ++o) {
        format.unpack(rows + o * row_bytes, index, block);
        pack_codes<kBits>(block.code, codes + 4 * o);
        pack_scales(kind, block, o, scales);
        if (has_super(kind) && b % kSuperBlocks == 0) {
          put(supers + 2 * o, block.d);
          if (has_minimum(kind)) put(supers + kF16s + 2 * o, block.m);
        }
      }
      codes += 64 * kBits;
      scales += scale_bytes(kind);
      if (b % kSuperBlocks == kSuperBlocks - 1) supers += super_bytes(kind);
    }
  }
}

// Areas of QuantRows, each on its own cache lines.
struct RowAreas {
  size_t scale, scaled_sum, half_sums, end;  // codes are at 0
};

RowAreas row_areas(size_t rows, size_t inputs) {
  const size_t floats = whole_lines(rows * (inputs / kQuantBlock) * sizeof(float));
  RowAreas areas;
  areas.scale = whole_lines(rows * inputs) + kQuantTile * kQuantBlock;  // tiles with fewer rows are read as whole ones
  areas.scaled_sum = areas.scale + floats;
  areas.half_sums = areas.scaled_sum + floats;
  areas.end = areas.half_sums + whole_lines(rows * (inputs / kQuantBlock) * 2 * sizeof(int32_t));
  return areas;
}

}  // namespace

void pack_quant_group(const QuantMatrix& w, const std::byte* rows, size_t row_bytes, size_t file_block_bytes,
                      size_t file_block_elements, size_t outputs, std::byte* out) {
  CHECK(outputs >= 1 && outputs <= kQuantOutputs, "a group has 1 to 16 outputs");
  CHECK(w.inputs % file_block_elements == 0, "a row is whole blocks of the file");
  if (outputs < kQuantOutputs) {
    std::memset(out, 0, w.group_bytes());
  } else {
    std::memset(out + w.group_bytes() - kVector, 0, kVector);  // the padding, at most
  }
  const auto pack = [&]<size_t kBits>() {
    pack_group<kBits>(w, rows, row_bytes, file_block_bytes, file_block_elements / kQuantBlock, outputs, out);
  };
  switch (w.format->shape.bits) {
    case 2:
      return pack.operator()<2>();
    case 3:
      return pack.operator()<3>();
    case 4:
      return pack.operator()<4>();
    case 5:
      return pack.operator()<5>();
    case 6:
      return pack.operator()<6>();
    case 8:
      return pack.operator()<8>();
    default:
      CHECK(false, "codes have 2, 3, 4, 5, 6 or 8 bits");
  }
}

void gather_quant_row(const QuantMatrix& w, size_t index, float factor, float* out) {
  const QuantShape& shape = w.format->shape;
  const std::byte* group = w.group(index / kQuantOutputs);
  const size_t output = index % kQuantOutputs;
  for (size_t b = 0; b < w.blocks(); ++b, out += kQuantBlock) {
    uint8_t code[kQuantBlock];
    unpack_codes(shape.bits, group + b * shape.code_bytes() + 4 * output, code);
    const BlockScales s = read_scales(shape.scale, group + w.scales_offset() + b * scale_bytes(shape.scale),
                                      group + w.supers_offset() + b / kSuperBlocks * super_bytes(shape.scale), output);
    for (size_t i = 0; i < kQuantBlock; ++i) {
      const int stored = shape.table ? w.format->table[code[i]] : code[i];
      float value = s.scale[i / 16] * static_cast<float>(stored - shape.zero);
      if (has_minimum(shape.scale)) value += s.minimum[i / 16];
      out[i] = value * factor;
    }
  }
}

size_t quant_rows_bytes(size_t rows, size_t inputs) { return row_areas(rows, inputs).end; }

QuantRows quant_rows_at(std::byte* memory, size_t rows, size_t inputs) {
  const RowAreas areas = row_areas(rows, inputs);
  QuantRows out;
  out.rows = rows;
  out.inputs = inputs;
  out.codes = reinterpret_cast<int8_t*>(memory);
  out.scale = reinterpret_cast<float*>(memory + areas.scale);
  out.scaled_sum = reinterpret_cast<float*>(memory + areas.scaled_sum);
  out.half_sums = reinterpret_cast<int32_t*>(memory + areas.half_sums);
  return out;
}

}  // namespace kvarto
