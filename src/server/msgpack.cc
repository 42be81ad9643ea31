#include "server/msgpack.h"

#include <bit>

namespace kvarto {

void MsgpackWriter::big_endian(uint8_t tag, uint64_t value, int width) {
  byte(tag);
  for (int i = width - 1; i >= 0; --i) byte(static_cast<uint8_t>(value >> (8 * i)));
}

void MsgpackWriter::unsigned_integer(uint64_t value) {
  if (value < 0x80) {
    byte(static_cast<uint8_t>(value));
  } else if (value <= UINT8_MAX) {
    big_endian(0xcc, value, 1);
  } else if (value <= UINT16_MAX) {
    big_endian(0xcd, value, 2);
  } else if (value <= UINT32_MAX) {
    big_endian(0xce, value, 4);
  } else {
    big_endian(0xcf, value, 8);
  }
}

void MsgpackWriter::integer(int64_t value) {
  const uint64_t bits = static_cast<uint64_t>(value);
  if (value >= 0) {
    unsigned_integer(bits);
  } else if (value >= -32) {
    byte(static_cast<uint8_t>(bits));
  } else if (value >= INT8_MIN) {
    big_endian(0xd0, bits, 1);
  } else if (value >= INT16_MIN) {
    big_endian(0xd1, bits, 2);
  } else if (value >= INT32_MIN) {
    big_endian(0xd2, bits, 4);
  } else {
    big_endian(0xd3, bits, 8);
  }
}

void MsgpackWriter::float64(double value) { big_endian(0xcb, std::bit_cast<uint64_t>(value), 8); }

// `tag8` 0: this type has no form with one byte of length.
void MsgpackWriter::sized(uint32_t size, uint8_t tag8, uint8_t tag16, uint8_t tag32) {
  if (tag8 != 0 && size <= UINT8_MAX) {
    big_endian(tag8, size, 1);
  } else if (size <= UINT16_MAX) {
    big_endian(tag16, size, 2);
  } else {
    big_endian(tag32, size, 4);
  }
}

void MsgpackWriter::text(std::string_view utf8) {
  const uint32_t size = static_cast<uint32_t>(utf8.size());
  if (size < 32) {
    byte(static_cast<uint8_t>(0xa0 + size));
  } else {
    sized(size, 0xd9, 0xda, 0xdb);
  }
  out_.append(utf8);
}

void MsgpackWriter::binary(std::span<const uint8_t> bytes) {
  sized(static_cast<uint32_t>(bytes.size()), 0xc4, 0xc5, 0xc6);
  out_.append(bytes.begin(), bytes.end());
}

void MsgpackWriter::array(uint32_t count) {
  if (count < 16) {
    byte(static_cast<uint8_t>(0x90 + count));
  } else {
    sized(count, 0, 0xdc, 0xdd);
  }
}

void MsgpackWriter::map(uint32_t count) {
  if (count < 16) {
    byte(static_cast<uint8_t>(0x80 + count));
  } else {
    sized(count, 0, 0xde, 0xdf);
  }
}

}  // namespace kvarto
