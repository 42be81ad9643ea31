// Bytes of a block as numbers: little-endian loads that need no alignment, and nibbles. Shared by the formats; any
// thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace kvarto::weight {

static_assert(std::endian::native == std::endian::little, "GGUF blocks are read as they lie");

inline const uint8_t* as_u8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

template <typename T>
inline T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

inline float load_f16(const std::byte* p) { return f16_to_f32(load<uint16_t>(p)); }

inline int low_nibble(uint8_t b) { return b & 15; }
inline int high_nibble(uint8_t b) { return b >> 4; }

}  // namespace kvarto::weight
