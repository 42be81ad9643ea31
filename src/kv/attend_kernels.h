// The part of attention that is compiled once per SIMD target: one unit's rows over one split. Called by attend.cc, on
// workers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "base/fault.h"
#include "codec/kernels.h"
#include "kv/attend.h"
#include "kv/softmax_state.h"
#include "kv/view.h"

namespace kvarto {

// Sub-tiles that are unsealed together.
inline constexpr size_t kKeysAtOnce = 2, kValuesAtOnce = 4;

// The rows of one unit: the query heads of one KV head over neighbouring tokens. Row r = token * group + head;
// positions ascend with the token. Blocks before the first token's are sealed for all rows; from it on they are raw, so
// the tokens share one block unless sealing is the identity.
struct AttendTile {
  const KvView* view = nullptr;
  const AttentionShape* shape = nullptr;
  const CodecKernels* sealed[2] = {};  // of keys, of values
  const CodecKernels* raw[2] = {};
  const DirectKernels* unsealed = nullptr;
  uint32_t layer = 0, head = 0;
  uint64_t first_position = 0;
  uint32_t tokens = 0, group = 0;
  float* q = nullptr;          // panels of the rows of one kernel call, each [key_dim][rows of the panel]
  float* scores = nullptr;     // [rows][kScoreStride]
  float* unseal_to = nullptr;  // kKeysAtOnce sub-tiles of keys, or kValuesAtOnce of values

  const KvPlane& plane(uint32_t index) const { return view->group->layers[layer].planes[index]; }
  size_t rows() const { return size_t{tokens} * group; }
  uint64_t position(uint32_t token) const { return first_position + token; }
  // Newest key that a token sees: its own.
  uint64_t newest(uint32_t token) const {
    return fault(9) ? std::min(position(token) + 1, position(token) | 15) : position(token);
  }
  // Oldest key that a token sees.
  uint64_t oldest(uint32_t token) const {
    const uint64_t p = position(token), window = view->group->window;
    return window == 0 || p + 1 < window ? 0 : p + (fault(10) ? 2 : 1) - window;
  }
};

struct AttendKernels {
  // Query rows [rows][key_dim], gathered from `q` [token][head], into the tile's panels.
  void (*pack)(const AttendTile& tile, const float* q, size_t q_stride);
  // The states of all rows over one split, from scratch.
  void (*split)(const AttendTile& tile, uint64_t split, const SoftmaxStates& states);
  void (*merge)(const SoftmaxStates& into, const SoftmaxStates& later);
  // One row's result [dims].
  void (*finish)(const SoftmaxStates& states, size_t row, const float* sink, size_t dims, float* result);
};
const AttendKernels& attend_kernels(SimdTarget target);

}  // namespace kvarto
