// Weight formats: how a row of quantised weights becomes floats. One format = one header here + one line in list.h.
// Source of the layouts: the public GGUF description. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvarto {

struct QuantFormat;  // ops/quant.h

// One row of the table of formats. `dequantize` turns `blocks` blocks at `in` into blocks * block_elements floats, in
// float arithmetic without contraction, in the order the formula is written (so any machine gives the same bits).
struct WeightFormat {
  uint32_t gguf_type;     // type number in GGUF files
  std::string_view name;  // "Q4_K"
  uint32_t block_elements;
  uint32_t block_bytes;
  void (*dequantize)(const std::byte* in, size_t blocks, float* out);
  const QuantFormat* quant = nullptr;  // how the int8 kernels take it; null for float formats
};

std::span<const WeightFormat> weight_formats();
const WeightFormat* find_weight_format(uint32_t gguf_type);  // nullptr: not computed with here

}  // namespace kvarto
