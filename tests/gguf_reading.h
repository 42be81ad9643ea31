// Reads everything a GGUF file offers, through every accessor: for tests and the fuzz target, which look for crashes
// and sanitizer reports. Returns a sum over all bytes and values, so that nothing is optimised away.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "format/gguf.h"

namespace kvarto {

template <typename T>
size_t weight_of(const Result<std::optional<T>>& value) {
  if (!value) return value.error().message.size();
  return value->has_value() ? 1 : 0;
}

inline size_t read_all_of(const GgufFile& file, std::string_view key) {
  size_t sum = file.describe(key).size() + (file.has(key) ? 1 : 0);
  sum += weight_of(file.get_uint(key)) + weight_of(file.get_int(key)) + weight_of(file.get_float(key));
  sum += weight_of(file.get_bool(key)) + weight_of(file.get_string(key));
  sum += weight_of(file.get_uints(key)) + weight_of(file.get_ints(key)) + weight_of(file.get_floats(key));
  sum += weight_of(file.get_bools(key));
  const auto strings = file.get_strings(key);
  if (strings && *strings) {
    for (const std::string_view s : **strings) {
      for (const char c : s) sum += static_cast<unsigned char>(c);
    }
  }
  return sum;
}

inline size_t read_everything(const GgufFile& file) {
  size_t sum = file.version() + file.name().size() + read_all_of(file, "no such key");
  for (const std::string_view key : file.keys()) sum += read_all_of(file, key);
  for (const GgufTensor& tensor : file.tensors()) {
    sum += file.find_tensor(tensor.name) == &tensor ? tensor.elements : 0;
    for (const std::byte b : tensor.bytes) sum += std::to_integer<size_t>(b);
    file.release(tensor);
  }
  return sum + file.fingerprint().size();
}

}  // namespace kvarto
