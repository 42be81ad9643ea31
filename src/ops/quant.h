// Quantised weights times int8 activations: the shapes in memory that packing (ops/quant_pack.cc) writes and the
// kernels (ops/quant_matmul.cc, ops/quant_amx.cc) read. Any thread. Order of arithmetic: DESIGN section 2. All SIMD
// targets give the same bits: integer dot products are exact, what follows is one chain of fused multiply-adds per
// output.
//
// Activations: per 32 values d = amax / 127, code = nearest even of x / d (true division), limited to +-127; d = 0
// gives zeros. Any infinity or NaN among the 32 gives d = NaN and zeros, so the outputs become NaN.
//
// Output o of one row, blocks b of 32 inputs ascending:
//   dot    = sum over the block of (code_w - zero) * code_x                   (exact int32)
//   acc    = fma(float(dot), dw * dx, acc)                  acc starts from the bias, or 0
//   accm   = fma(dm, dx * float(sum of code_x), accm)       formats with minima only; starts from 0
//   y      = acc + accm, or acc
// dw * dx and dx * float(sum) are rounded products. Formats with two scales s0, s1 per block (16 weights each) have
// dot = s0 * dot0 + s1 * dot1, and with minima sum = m0 * sum0 + m1 * sum1: both exact, below 2^24.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace kvarto {

constexpr size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

inline constexpr size_t kQuantBlock = 32;    // inputs that share one activation scale
inline constexpr size_t kSuperBlocks = 8;    // blocks that share one super scale
inline constexpr size_t kQuantOutputs = 16;  // outputs of one group: the lanes

// What gives a block its dw and dm. "super" kinds have small integers per block and a float16 per eight blocks.
enum class QuantScale : uint8_t {
  half,         // dw = d (f16)
  half_min,     // dw = d (f16), dm = m (f16)
  single,       // dw = d (f32)
  super,        // dw = d * s; s int8
  super_min,    // dw = d * s, dm = n * m; s, m uint8; n is the negated dmin
  super16,      // dw = d; s0, s1 int8
  super16_min,  // dw = d, dm = n; s0, s1, m0, m1 uint8
};
constexpr bool has_minimum(QuantScale s) {
  return s == QuantScale::half_min || s == QuantScale::super_min || s == QuantScale::super16_min;
}
constexpr bool has_halves(QuantScale s) { return s == QuantScale::super16 || s == QuantScale::super16_min; }
constexpr bool has_super(QuantScale s) { return s >= QuantScale::super; }
// Bytes that 16 outputs take per block, and per super block (0: none).
constexpr size_t scale_bytes(QuantScale s) {
  switch (s) {
    case QuantScale::half:
      return 32;  // d [16]
    case QuantScale::half_min:
      return 64;  // d [16], m [16]
    case QuantScale::single:
      return 64;  // d [16]
    case QuantScale::super:
      return 16;  // s [16]
    case QuantScale::super_min:
      return 32;  // s [16], m [16]
    case QuantScale::super16:
      return 32;  // s0 [16], s1 [16]
    case QuantScale::super16_min:
      return 64;  // s0 [16], s1 [16], m0 [16], m1 [16]
  }
  return 0;
}
constexpr size_t super_bytes(QuantScale s) {  // f16: d [16], then n [16] where there are minima
  return has_super(s) ? (has_minimum(s) ? 64 : 32) : 0;
}

// The part of a format that kernels are compiled for.
struct QuantShape {
  uint8_t bits;  // of a stored code: 2, 3, 4, 5, 6 or 8
  bool table;    // stored 4-bit codes are indexes of a table that holds the codes
  uint8_t zero;  // weight = scale * (code - zero) + minimum
  QuantScale scale;
  bool operator==(const QuantShape&) const = default;
  constexpr size_t code_bytes() const { return 64 * size_t{bits}; }  // of 16 outputs and one block
};

// One block of 32 weights of one output, as a format's file unpacks it: only what its scale kind has is set.
struct QuantBlock {
  uint8_t code[kQuantBlock];  // as stored (before the table), < 2^bits
  uint16_t d, m;              // f16 bits; m: minimum, or the negated dmin
  float single;
  uint8_t scale[2], minimum[2];  // int8 scales as their bits
};

struct QuantFormat {
  QuantShape shape;
  const uint8_t* table;  // [16], null without one
  // Block `index` of 32 weights inside one block of the file.
  void (*unpack)(const std::byte* file_block, size_t index, QuantBlock& out);
};

// A matrix in groups of 16 outputs, one after the other. A group is three runs:
//   codes   [blocks][code_bytes]: vectors of 64 bytes, byte 4 * output + i. Quad j (0..7) of a block is inputs
//           4j .. 4j + 3. Planes in this order:
//           - 4 bits (bits 4, 5, 6): 4 vectors; vector v has quad 2v in the low, quad 2v + 1 in the high nibbles
//           - 8 bits: 8 vectors, one per quad
//           - 2 bits (bits 2, 3: the low part; bits 6: the high part, << 4): 2 vectors; vector v has quad 4v + t at
//             bit 2t
//           - 1 bit (bits 3: << 2; bits 5: << 4): 1 vector; quad j at bit j
//   scales  [blocks][scale_bytes]
//   supers  [ceil(blocks / 8)][super_bytes]
// padded to a multiple of 64 bytes. Outputs that the last group lacks have zero codes and zero scales.
struct QuantMatrix {
  size_t outputs = 0;
  size_t inputs = 0;  // a multiple of 32; of 256 for "super" kinds
  const QuantFormat* format = nullptr;
  const std::byte* data = nullptr;  // 64-byte aligned

  size_t groups() const { return (outputs + kQuantOutputs - 1) / kQuantOutputs; }
  size_t blocks() const { return inputs / kQuantBlock; }
  size_t scales_offset() const { return blocks() * format->shape.code_bytes(); }
  size_t supers_offset() const { return scales_offset() + blocks() * scale_bytes(format->shape.scale); }
  size_t group_bytes() const {
    const size_t supers = (blocks() + kSuperBlocks - 1) / kSuperBlocks;
    return whole_lines(supers_offset() + supers * super_bytes(format->shape.scale));
  }
  size_t bytes() const { return groups() * group_bytes(); }
  const std::byte* group(size_t g) const { return data + g * group_bytes(); }
};

// Quantised activations, in tiles of 16 rows so that kernels find the rows of a block side by side: the tile that
// starts at row t has tile_rows(t) rows (the last one may have fewer) and lies behind the rows before it, at codes + t
// * inputs, scale + t * blocks and so on. A single row is plain. Owned by the caller, who cuts them from
// quant_rows_bytes() bytes aligned to 64.
inline constexpr size_t kQuantTile = 16;
struct QuantRows {
  size_t rows = 0;
  size_t inputs = 0;             // a multiple of 32
  int8_t* codes = nullptr;       // tiles of [blocks][rows of the tile][32]
  float* scale = nullptr;        // tiles of [blocks][rows of the tile]
  float* scaled_sum = nullptr;   // the same: scale * float(sum of codes)
  int32_t* half_sums = nullptr;  // tiles of [2][blocks][rows of the tile]: sums of the first and of the last 16 codes
  size_t blocks() const { return inputs / kQuantBlock; }
  size_t tile_rows(size_t first) const { return rows - first < kQuantTile ? rows - first : kQuantTile; }
};
size_t quant_rows_bytes(size_t rows, size_t inputs);
QuantRows quant_rows_at(std::byte* memory, size_t rows, size_t inputs);

struct QuantOps {
  // Rows [first, last) of x [rows][inputs] into `out`.
  void (*quantise)(const float* x, size_t first, size_t last, const QuantRows& out);
  // y[r][o] for all rows of x (at least 1) and the outputs of groups [first_group, last_group); y row stride
  // `y_stride` floats. Writes only existing outputs. `scratch`: quant_scratch_bytes(inputs), aligned to 64.
  void (*matmul)(const QuantRows& x, const QuantMatrix& w, const float* bias, size_t first_group, size_t last_group,
                 float* y, size_t y_stride, std::byte* scratch);
};
const QuantOps& quant_ops(SimdTarget target);
size_t quant_scratch_bytes(size_t inputs);  // of one worker: weights unpacked once for many rows

// --- packing (plain C++; called once per tensor at load)

// Packs `outputs` (1..16) rows of a file, `row_bytes` apart, into one group of `w` at `out` (group_bytes).
void pack_quant_group(const QuantMatrix& w, const std::byte* rows, size_t row_bytes, size_t file_block_bytes,
                      size_t file_block_elements, size_t outputs, std::byte* out);
// Row `index` of the matrix as floats times `factor`: the bits that the format's dequantize gives, times `factor`.
void gather_quant_row(const QuantMatrix& w, size_t index, float factor, float* out);

}  // namespace kvarto
