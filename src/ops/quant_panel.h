// Groups of a quantised matrix with their codes unpacked, one byte each: what kernels for many rows read instead of
// unpacking once per row. In the caller's scratch. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "ops/quant.h"

namespace kvarto {

// Which floats a block has per output, and in which order: dw; dm where there are minima; the scales of the halves
// where there are halves; the minima of the halves where there are both.
struct PanelScales {
  bool minimum, halves;
  constexpr explicit PanelScales(QuantScale s) : minimum(has_minimum(s)), halves(has_halves(s)) {}
  constexpr PanelScales(bool with_minimum, bool with_halves) : minimum(with_minimum), halves(with_halves) {}
  constexpr size_t dw() const { return 0; }
  constexpr size_t dm() const { return 1; }
  constexpr size_t scale(size_t half) const { return (minimum ? 2 : 1) + half; }
  constexpr size_t minimum_of(size_t half) const { return 4 + half; }
  constexpr size_t count() const { return (minimum ? 2u : 1u) * (halves ? 3u : 1u); }
};

// Of a block: [8 quads][16 outputs][4]. Unsigned codes (< 2^bits or from the table); AMX unpacks signed ones, code -
// zero.
inline constexpr size_t kPanelCodeBytes = 512;

struct QuantPanel {
  uint8_t* codes;  // [blocks][kPanelCodeBytes]
  float* scales;   // [blocks][PanelScales::count()][16]
};
constexpr size_t quant_panel_bytes(size_t blocks) {  // of one group of any format
  return blocks * (kPanelCodeBytes + PanelScales(true, true).count() * kQuantOutputs * sizeof(float));
}
inline QuantPanel quant_panel_at(std::byte* memory, size_t blocks) {
  return {reinterpret_cast<uint8_t*>(memory), reinterpret_cast<float*>(memory + blocks * kPanelCodeBytes)};
}

using UnpackPanel = void (*)(const QuantMatrix& w, size_t group, const QuantPanel& out);
UnpackPanel panel_unpacker(SimdTarget target, const QuantShape& shape);

}  // namespace kvarto
