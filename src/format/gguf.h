// Reader of GGUF v2/v3 files (little and big endian headers are told apart; big endian is refused by name). Everything
// that is read is checked before it is used: a wrong file gives an Error that names the key or tensor, never a crash
// and never an allocation that the file's own length does not justify. Model-free: keys and tensors only. Immutable
// after open; any thread. Source: the public GGUF description.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "kvarto/result.h"

namespace kvarto {

// Tensor types as numbered by the format. Which of them the engine computes with is decided by ops/weight/list.h.
struct GgufTypeInfo {
  uint32_t id;
  const char* name;         // "Q4_K"
  uint32_t block_elements;  // elements per block
  uint32_t block_bytes;
};
const GgufTypeInfo* gguf_type_info(uint32_t id);  // nullptr: unknown
const GgufTypeInfo* gguf_type_info(std::string_view name);

enum class GgufValueType : uint8_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

struct GgufTensor {
  std::string name;
  const GgufTypeInfo* type = nullptr;
  std::vector<uint64_t> shape;       // contiguous dimension first, 1 to 4 entries
  std::span<const std::byte> bytes;  // inside the mapped file (of the part that holds the tensor)
  uint64_t elements = 0;
};

class GgufFile {
 public:
  // Opens `path`; a part of a split file ("-00001-of-0000N") opens all its siblings, whichever part was named.
  static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);
  // Parses bytes that the caller keeps alive (tests, fuzzing, models compiled into the binary). Single part only.
  static Result<std::shared_ptr<const GgufFile>> parse(std::span<const std::byte> bytes, std::string name = "memory");
  ~GgufFile();

  // Typed access. A missing key is nullopt; a key of another type is converted when that loses nothing (any integer
  // type to any that holds the value, bool <-> 0/1 integers, f64 <-> f32), else an Error naming the key and both types.
  Result<std::optional<uint64_t>> get_uint(std::string_view key) const;
  Result<std::optional<int64_t>> get_int(std::string_view key) const;
  Result<std::optional<double>> get_float(std::string_view key) const;  // integers too
  Result<std::optional<bool>> get_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> get_string(std::string_view key) const;
  // Arrays; a scalar of the element's kind reads as "absent" is never assumed: get_uints on a scalar gives one element.
  Result<std::optional<std::vector<uint64_t>>> get_uints(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> get_ints(std::string_view key) const;
  Result<std::optional<std::vector<float>>> get_floats(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> get_strings(std::string_view key) const;  // point into the file
  Result<std::optional<std::vector<bool>>> get_bools(std::string_view key) const;
  bool has(std::string_view key) const;
  std::vector<std::string_view> keys() const;  // file order
  // Short display of a value ("llama", "[49152 strings]"), for `inspect`; empty when the key is missing.
  std::string describe(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const;              // file order, all parts
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr: missing
  const std::string& name() const;                             // path, or the name given to parse
  uint32_t version() const;
  // The pages behind `tensor` will not be read again.
  void release(const GgufTensor& tensor) const;
  // SHA-256 over architecture keys, tokenizer keys and tensor names, types, shapes and data: what makes two files the
  // same model. Reads the whole file once; computed on first call, then kept (thread-safe).
  const std::string& fingerprint() const;  // 64 hex digits

 private:
  GgufFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
