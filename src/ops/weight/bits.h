// Bytes of a block as numbers: little-endian loads that need no alignment, and nibbles. Shared by the formats; any
// thread.
#pragma once

#include <array>
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

// Eight bytes at once, for unpacking into codes (QuantBlock).
inline constexpr uint64_t kEachByte = 0x0101010101010101;
inline constexpr uint16_t kF16Sign = 0x8000;

inline void store8(uint64_t bytes, uint8_t* out) { std::memcpy(out, &bytes, sizeof bytes); }

// The field of `mask` width at bit `shift` of each of eight bytes.
inline uint64_t fields(const std::byte* p, int shift, uint64_t mask) {
  return load<uint64_t>(p) >> shift & mask * kEachByte;
}

// Sixteen bytes: the low nibbles are codes 0 to 15, the high ones 16 to 31.
inline void unpack_nibbles(const std::byte* in, uint8_t* code) {
  for (size_t i = 0; i < 16; i += 8) {
    store8(fields(in + i, 0, 15), code + i);
    store8(fields(in + i, 4, 15), code + 16 + i);
  }
}

// Bit i of the 32 bits at `in` becomes bit 4 of code i.
inline void add_fifth_bits(const std::byte* in, uint8_t* code) {
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t own_bit = as_u8(in)[i] * kEachByte & 0x8040201008040201;  // byte k keeps bit k
    const uint64_t fifth = (own_bit + 0x7f * kEachByte) >> 7 & kEachByte;    // 1 where it is set; bytes do not carry
    uint64_t codes;
    std::memcpy(&codes, code + 8 * i, sizeof codes);
    store8(codes | fifth << 4, code + 8 * i);
  }
}

// Levels of a table as unsigned codes: level + zero.
constexpr std::array<uint8_t, 16> table_codes(const float (&levels)[16], int zero) {
  std::array<uint8_t, 16> codes{};
  for (size_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(static_cast<int>(levels[i]) + zero);
  return codes;
}

inline int low_nibble(uint8_t b) { return b & 15; }
inline int high_nibble(uint8_t b) { return b >> 4; }

}  // namespace kvarto::weight
