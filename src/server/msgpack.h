// Writes MessagePack: the few types that events need, integers in their shortest form. A writer belongs to one thread
// at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvarto {

class MsgpackWriter {
 public:
  void nil() { byte(0xc0); }
  void boolean(bool value) { byte(value ? 0xc3 : 0xc2); }
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void float64(double value);
  void text(std::string_view utf8);
  void binary(std::span<const uint8_t> bytes);
  void array(uint32_t count);  // the `count` values follow
  void map(uint32_t count);    // `count` keys follow, each with its value

  const std::string& bytes() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  void byte(uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void big_endian(uint8_t tag, uint64_t value, int width);
  void sized(uint32_t size, uint8_t tag8, uint8_t tag16, uint8_t tag32);

  std::string out_;
};

}  // namespace kvarto
