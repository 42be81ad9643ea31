// Batch: what one step computes, as plain arrays. Made by the engine (or a test), read by Model::forward; spans must
// outlive the call. Rows of a sequence are consecutive and ascend in position.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kv/view.h"
#include "kvarto/types.h"

namespace kvarto {

struct BatchSequence {
  uint32_t first_row = 0;
  uint32_t count = 0;
  uint64_t first_position = 0;
  std::span<const KvView> views;  // [groups]
};

struct Batch {
  std::span<const TokenId> tokens;  // [rows]
  std::span<const BatchSequence> sequences;
  std::span<const uint32_t> logit_rows;  // rows whose final hidden state is wanted, ascending
  // Sees the residual stream [rows][width] after the embedding (layer 0) and after layer i (i + 1). Tests only; may be
  // empty.
  std::function<void(uint32_t layer, const float* rows)> trace;
};

}  // namespace kvarto
