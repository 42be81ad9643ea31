// One GGUF file (a whole model, or one part of a split one), parsed and checked. What comes out points into `bytes`,
// which the caller keeps alive. Immutable; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf.h"
#include "format/gguf_value.h"
#include "kvarto/result.h"

namespace kvarto {

struct GgufPart {
  uint32_t version = 0;
  std::vector<GgufValue> values;    // file order, no key twice
  std::vector<GgufTensor> tensors;  // file order, no name twice
};

// `name` is what errors call the file.
Result<GgufPart> parse_gguf_part(std::span<const std::byte> bytes, const std::string& name);

const GgufValue* find_value(const GgufPart& part, std::string_view key);  // nullptr: missing; a linear search

// The first text that occurs twice, or nothing. Sorts, so that no choice of texts makes it slow.
std::optional<std::string_view> find_duplicate(std::vector<std::string_view> texts);

}  // namespace kvarto
