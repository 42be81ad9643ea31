// Two tiny random models compiled into the program, so that it can check and measure itself without a file. Immutable;
// any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kvarto {

struct TinyModel {
  std::string_view name;
  std::span<const std::byte> gguf;
};
std::span<const TinyModel> tiny_models();

}  // namespace kvarto
