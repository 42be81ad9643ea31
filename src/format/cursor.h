// A bounded reader over bytes from outside: every read says whether there was enough left, nothing is ever read past
// the end, and a read that fails consumes nothing. Little-endian numbers, no alignment needed. A value type; one thread
// at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace kvarto {

static_assert(std::endian::native == std::endian::little, "numbers in files are read as they lie");

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  std::optional<T> read() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    if (remaining() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::optional<std::span<const std::byte>> take(uint64_t size) {
    if (size > remaining()) return std::nullopt;
    const auto taken = bytes_.subspan(position_, static_cast<size_t>(size));
    position_ += taken.size();
    return taken;
  }

  // Everything from `from` (an earlier position) up to here.
  std::span<const std::byte> since(size_t from) const { return bytes_.subspan(from, position_ - from); }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace kvarto
