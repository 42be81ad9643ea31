#include "format/gguf_value.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "format/printable.h"

namespace kvarto {
namespace {

struct ValueType {
  const char* name;
  size_t min_bytes;
};

// Indexed by GgufValueType.
constexpr ValueType kValueTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                     {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 8}, {"array", 12},
                                     {"u64", 8}, {"i64", 8}, {"f64", 8}};

// "3 strings", "1 string", "3 u32"
std::string counted(uint64_t count, GgufValueType type) {
  const bool word = type == GgufValueType::string || type == GgufValueType::array || type == GgufValueType::boolean;
  return std::to_string(count) + ' ' + gguf_value_type_name(type) + (word && count != 1 ? "s" : "");
}

// The fewest digits that read back as the same number of the same type.
template <typename F>
std::string shortest(F number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <typename T>
T checked(std::optional<T> value) {
  CHECK(value.has_value(), "a GGUF value was read past its checked bytes");
  return *value;
}

}  // namespace

const char* gguf_value_type_name(GgufValueType type) { return kValueTypes[static_cast<size_t>(type)].name; }

size_t gguf_value_min_bytes(GgufValueType type) { return kValueTypes[static_cast<size_t>(type)].min_bytes; }

GgufScalar GgufElements::next() {
  switch (type_) {
    case GgufValueType::u8:
      return uint64_t{checked(cursor_.read<uint8_t>())};
    case GgufValueType::i8:
      return int64_t{checked(cursor_.read<int8_t>())};
    case GgufValueType::u16:
      return uint64_t{checked(cursor_.read<uint16_t>())};
    case GgufValueType::i16:
      return int64_t{checked(cursor_.read<int16_t>())};
    case GgufValueType::u32:
      return uint64_t{checked(cursor_.read<uint32_t>())};
    case GgufValueType::i32:
      return int64_t{checked(cursor_.read<int32_t>())};
    case GgufValueType::u64:
      return checked(cursor_.read<uint64_t>());
    case GgufValueType::i64:
      return checked(cursor_.read<int64_t>());
    case GgufValueType::f32:
      return double{checked(cursor_.read<float>())};
    case GgufValueType::f64:
      return checked(cursor_.read<double>());
    case GgufValueType::boolean:
      return checked(cursor_.read<uint8_t>()) != 0;
    case GgufValueType::string:
      return as_text(checked(cursor_.take(checked(cursor_.read<uint64_t>()))));
    case GgufValueType::array:
      break;
  }
  CHECK(false, "an array of arrays has no scalar elements");
  return {};
}

std::optional<uint64_t> exact_uint(const GgufScalar& value) {
  if (const auto* u = std::get_if<uint64_t>(&value)) return *u;
  if (const auto* i = std::get_if<int64_t>(&value); i != nullptr && *i >= 0) return static_cast<uint64_t>(*i);
  if (const auto* b = std::get_if<bool>(&value)) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<int64_t> exact_int(const GgufScalar& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return *i;
  const std::optional<uint64_t> u = exact_uint(value);
  if (u && std::in_range<int64_t>(*u)) return static_cast<int64_t>(*u);
  return std::nullopt;
}

// Integers come through where a double holds them; the comparison back is made only where it cannot overflow.
std::optional<double> exact_double(const GgufScalar& value) {
  if (const auto* f = std::get_if<double>(&value)) return *f;
  if (const auto* u = std::get_if<uint64_t>(&value)) {
    const double d = static_cast<double>(*u);
    if (d < 0x1p64 && static_cast<uint64_t>(d) == *u) return d;
  }
  if (const auto* i = std::get_if<int64_t>(&value)) {
    const double d = static_cast<double>(*i);
    if (d < 0x1p63 && static_cast<int64_t>(d) == *i) return d;
  }
  return std::nullopt;
}

std::optional<float> exact_float(const GgufScalar& value) {
  const std::optional<double> d = exact_double(value);
  if (!d) return std::nullopt;
  if (std::isfinite(*d) && std::abs(*d) > std::numeric_limits<float>::max()) return std::nullopt;
  const float f = static_cast<float>(*d);
  if (!std::isnan(*d) && static_cast<double>(f) != *d) return std::nullopt;
  return f;
}

std::optional<bool> exact_bool(const GgufScalar& value) {
  const std::optional<uint64_t> u = exact_uint(value);
  if (u && *u <= 1) return *u == 1;
  return std::nullopt;
}

std::optional<std::string_view> exact_string(const GgufScalar& value) {
  if (const auto* s = std::get_if<std::string_view>(&value)) return *s;
  return std::nullopt;
}

std::string describe_type(const GgufValue& value) {
  return value.is_array ? "array of " + counted(value.count, value.type) : gguf_value_type_name(value.type);
}

std::string describe_value(const GgufValue& value) {
  if (value.is_array) return '[' + counted(value.count, value.type) + ']';
  const GgufScalar scalar = GgufElements(value).next();
  if (const auto* s = std::get_if<std::string_view>(&scalar)) return printable(*s);
  if (const auto* b = std::get_if<bool>(&scalar)) return *b ? "true" : "false";
  if (const auto* u = std::get_if<uint64_t>(&scalar)) return std::to_string(*u);
  if (const auto* i = std::get_if<int64_t>(&scalar)) return std::to_string(*i);
  const double number = std::get<double>(scalar);
  return value.type == GgufValueType::f64 ? shortest(number) : shortest(static_cast<float>(number));
}

}  // namespace kvarto
