// A value of a GGUF file as it lies there, and its reading as the C++ type a caller wants, where that loses nothing.
// Points into the file's bytes, whose owner outlives it. Immutable; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "format/cursor.h"
#include "format/gguf.h"

namespace kvarto {

// A scalar is kept as one element that is not an array. The bytes have been checked: elements are whole, bools are 0
// or 1.
struct GgufValue {
  std::string_view key;
  GgufValueType type = GgufValueType::u8;  // of the elements
  bool is_array = false;
  uint64_t count = 1;
  std::span<const std::byte> bytes;  // the elements one after another
};

const char* gguf_value_type_name(GgufValueType type);

// Fewest bytes that one element takes: exact but for strings (the length alone) and arrays (type and count alone).
size_t gguf_value_min_bytes(GgufValueType type);

using GgufScalar = std::variant<uint64_t, int64_t, double, bool, std::string_view>;

// Walks the elements of a value that is not an array of arrays; `next` is called `count` times at most.
class GgufElements {
 public:
  explicit GgufElements(const GgufValue& value) : type_(value.type), cursor_(value.bytes) {}
  GgufScalar next();

 private:
  GgufValueType type_;
  Cursor cursor_;
};

// The same value in another type, or nothing when it would not be the same.
std::optional<uint64_t> exact_uint(const GgufScalar& value);
std::optional<int64_t> exact_int(const GgufScalar& value);
std::optional<double> exact_double(const GgufScalar& value);
std::optional<float> exact_float(const GgufScalar& value);
std::optional<bool> exact_bool(const GgufScalar& value);
std::optional<std::string_view> exact_string(const GgufScalar& value);

std::string describe_type(const GgufValue& value);   // "u32", "array of 3 strings"
std::string describe_value(const GgufValue& value);  // "llama", "[3 strings]"

}  // namespace kvarto
