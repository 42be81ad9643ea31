// Writes GGUF bytes for tests, right or deliberately wrong: every count, offset and type can be overridden. Tests only.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarto {

// Little-endian bytes, one after another.
class ByteWriter {
 public:
  template <typename T>
  ByteWriter& number(T value) {
    const char* p = reinterpret_cast<const char*>(&value);
    text_.append(p, sizeof value);
    return *this;
  }
  ByteWriter& raw(std::string_view bytes) {
    text_.append(bytes);
    return *this;
  }
  ByteWriter& string(std::string_view s) { return number(uint64_t{s.size()}).raw(s); }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

class GgufBuilder {
 public:
  // Numbers of the value types.
  enum : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

  uint32_t version = 3;
  uint64_t alignment = 32;               // what the file is laid out with; the key is added by the caller
  std::optional<uint64_t> tensor_count;  // instead of the true ones
  std::optional<uint64_t> value_count;

  GgufBuilder& value(std::string_view key, uint32_t type, std::string_view bytes) {
    values_.push_back(ByteWriter().string(key).number(type).raw(bytes).str());
    return *this;
  }
  template <typename T>
  GgufBuilder& scalar(std::string_view key, uint32_t type, T number) {
    return value(key, type, ByteWriter().number(number).str());
  }
  GgufBuilder& string(std::string_view key, std::string_view text) {
    return value(key, kString, ByteWriter().string(text).str());
  }
  template <typename T>
  GgufBuilder& array(std::string_view key, uint32_t type, const std::vector<T>& numbers) {
    ByteWriter out;
    out.number(type).number(uint64_t{numbers.size()});
    for (const T number : numbers) out.number(number);
    return value(key, kArray, out.str());
  }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& texts) {
    ByteWriter out;
    out.number(uint32_t{kString}).number(uint64_t{texts.size()});
    for (const std::string& text : texts) out.string(text);
    return value(key, kArray, out.str());
  }

  // Data goes where the last tensor's padding ends, unless `offset` says otherwise (then the data is left as it is).
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type, std::string_view data,
                      std::optional<uint64_t> offset = std::nullopt) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    ByteWriter out;
    out.string(name).number(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) out.number(size);
    out.number(type).number(offset.value_or(data_.size()));
    tensors_.push_back(out.str());
    data_.append(data);
    return *this;
  }

  std::string build() const {
    ByteWriter out;
    out.raw("GGUF").number(version);
    out.number(tensor_count.value_or(tensors_.size())).number(value_count.value_or(values_.size()));
    for (const std::string& value : values_) out.raw(value);
    for (const std::string& tensor : tensors_) out.raw(tensor);
    std::string file = out.str();
    if (!tensors_.empty()) file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

 private:
  std::vector<std::string> values_;
  std::vector<std::string> tensors_;
  std::string data_;
};

}  // namespace kvarto
