#include "ops/weight/weight.h"

#include "ops/weight/list.h"

namespace kvarto {

std::span<const WeightFormat> weight_formats() { return weight::kList; }

const WeightFormat* find_weight_format(uint32_t gguf_type) {
  for (const WeightFormat& format : weight::kList) {
    if (format.gguf_type == gguf_type) return &format;
  }
  return nullptr;
}

}  // namespace kvarto
