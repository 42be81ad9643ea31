#include "kv/attend.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "codec/kernels.h"
#include "kv/attend_kernels.h"

namespace kvarto {
namespace {

// Rows in one unit pay for unsealing a sub-tile: at least this many where a 16-token sub-tile has fewer.
constexpr uint32_t kWishedRows = 96;
// New tokens of a sequence up to which splits are units of their own: few rows over many keys, as in decoding.
constexpr uint32_t kFewTokens = 64;
// Limits of one wave of units: how many, and how many bytes their partial states take.
constexpr size_t kWaveUnits = 1024;
constexpr size_t kPartialBytes = size_t{1} << 20;
constexpr size_t kPartialSlots = 8;  // of the largest kind, at least

size_t padded(size_t n) { return (n + 15) / 16 * 16; }

// What a worker computes at once: query heads of one KV head over neighbouring tokens and all of their splits, or one
// split of theirs, whose states wait in a slot until the chain of splits is complete.
struct Unit {
  uint32_t sequence, head, first, tokens;
  uint32_t split, splits;
  uint32_t chain;  // index of the chain's first unit in this wave; units of their own have splits to go through
  bool alone;
  // Of the chain, in its first unit: slots, units still running, whether the last split is among them.
  bool complete;
  uint32_t slots, running;
  size_t partial;  // first slot, floats into the wave's partial states
  size_t slot;     // this unit's own
};

// Memory of one call for given shapes. Everything is a multiple of 64 bytes.
struct Memory {
  explicit Memory(const AttendSizes& sizes)
      : group(sizes.heads / sizes.kv_heads),
        unit_tokens(16 * std::clamp(std::bit_ceil((kWishedRows + 16 * group - 1) / (16 * group)), 1u, 4u)),
        key_dim(sizes.key_dim),
        value_dims(padded(sizes.value_dim)) {
    const size_t rows = size_t{unit_tokens} * group;
    state = SoftmaxStates::floats(rows, value_dims);
    q = padded(rows * key_dim);
    scores = rows * kScoreStride;
    unsealed = 16 * std::max(kKeysAtOnce * padded(key_dim), kValuesAtOnce * value_dims);
    worker = q + scores + unsealed + 2 * state;
    partial = std::max(kPartialBytes / sizeof(float), kPartialSlots * slot(unit_tokens));
  }
  size_t slot(uint32_t tokens) const { return SoftmaxStates::floats(size_t{tokens} * group, value_dims); }
  size_t bytes(int threads) const {
    return (static_cast<size_t>(threads) * worker + partial) * sizeof(float) + kWaveUnits * sizeof(Unit);
  }

  uint32_t group, unit_tokens;
  size_t key_dim, value_dims;
  size_t q, scores, unsealed, state, worker, partial;  // floats
};

// One call of attend(). The owner plans a wave of units, the workers compute it, until all rows are done.
class AttendCall {
 public:
  AttendCall(SimdTarget target, std::span<const AttendRows> sequences, const AttentionShape& shape,
             const Memory& memory, int threads, std::byte* scratch)
      : kernels_(attend_kernels(target)), sequences_(sequences), shape_(shape), memory_(memory) {
    const KvGroupLayer& layer = sequences[0].view->group->layers[sequences[0].layer];
    kv_heads_ = layer.kv_heads;
    value_dim_ = layer.planes[1].dims;
    unit_tokens_ = memory.unit_tokens;
    for (size_t p = 0; p < 2; ++p) {
      sealed_[p] = &codec_kernels(target, layer.planes[p].dtype);
      raw_[p] = &codec_kernels(target, layer.planes[p].raw_dtype);
      // Rows that differ in which blocks they see sealed do not share a unit.
      if (sealed_[p] != raw_[p]) unit_tokens_ = std::min(unit_tokens_, sequences[0].view->block_tokens);
    }
    unsealed_ = &unsealed_kernels(target);
    workers_ = reinterpret_cast<float*>(scratch);
    partial_ = workers_ + static_cast<size_t>(threads) * memory.worker;
    units_ = reinterpret_cast<Unit*>(partial_ + memory.partial);
  }

  // Fills units [0, count) of the next wave; 0: all is done.
  size_t plan_wave() {
    count_ = 0;
    size_t used = carry_chain();
    while (next_.sequence < sequences_.size() && count_ < kWaveUnits && plan_tile(used)) {
    }
    return count_;
  }

  void run_unit(size_t index, int worker) {
    Unit& unit = units_[index];
    float* const memory = workers_ + static_cast<size_t>(worker) * memory_.worker;
    const AttendTile tile = tile_of(unit, memory);
    if (unit.alone) {
      run_alone(unit, tile, memory + memory_.q + memory_.scores + memory_.unsealed);
      return;
    }
    kernels_.split(tile, unit.split, states_at(unit, partial_ + unit.slot));
    Unit& chain = units_[unit.chain];
    if (std::atomic_ref(chain.running).fetch_sub(1, std::memory_order_acq_rel) == 1) close(chain);
  }

 private:
  // Where planning goes on.
  struct Cursor {
    uint32_t sequence = 0, head = 0, token = 0;
    uint32_t split = 0;  // splits of the tile that are planned already
  };

  SoftmaxStates states_at(const Unit& unit, float* memory) const {
    return SoftmaxStates::at(memory, size_t{unit.tokens} * memory_.group, memory_.value_dims);
  }

  // The states of a chain that the last wave did not complete move to the front; returns the floats they take.
  size_t carry_chain() {
    carried_ = next_.split > 0;
    if (!carried_) return 0;
    std::memmove(partial_, partial_ + cut_.partial, memory_.slot(cut_.tokens) * sizeof(float));
    return memory_.slot(cut_.tokens);
  }

  // The next tile of rows, or as many of its splits as fit; false: the wave is full.
  bool plan_tile(size_t& used) {
    const AttendRows& rows = sequences_[next_.sequence];
    const uint64_t position = rows.first_position + next_.token, window = rows.view->group->window;
    const auto tokens =
        static_cast<uint32_t>(std::min<uint64_t>(unit_tokens_ - position % unit_tokens_, rows.count - next_.token));
    const uint64_t oldest = window == 0 || position + 1 < window ? 0 : position + 1 - window;
    const auto first_split = static_cast<uint32_t>(oldest / kSplitTokens);
    const auto splits = static_cast<uint32_t>((position + tokens - 1) / kSplitTokens) - first_split + 1;
    Unit unit{};
    unit.sequence = next_.sequence;
    unit.head = next_.head;
    unit.first = next_.token;
    unit.tokens = tokens;
    unit.split = first_split;
    unit.splits = splits;
    unit.alone = rows.count > kFewTokens || splits == 1;
    if (unit.alone) {
      units_[count_++] = unit;
    } else if (!plan_chain(unit, used)) {
      return false;
    }
    advance(tokens, rows.count);
    return true;
  }

  // Splits of one tile from next_.split on; false: some are left for the next wave.
  bool plan_chain(Unit unit, size_t& used) {
    const size_t slot = memory_.slot(unit.tokens), carried = carried_ ? 1 : 0;
    const size_t room = std::min((memory_.partial - used) / slot, kWaveUnits - count_);
    const auto planned = static_cast<uint32_t>(std::min<size_t>(room, unit.splits - next_.split));
    if (planned == 0) return false;
    const size_t chain = count_;
    unit.chain = static_cast<uint32_t>(chain);
    unit.partial = used - carried * slot;
    unit.slots = planned + static_cast<uint32_t>(carried);
    unit.running = planned;
    unit.complete = next_.split + planned == unit.splits;
    unit.split += next_.split;
    for (uint32_t i = 0; i < planned; ++i, ++unit.split, used += slot) {
      unit.slot = used;
      units_[count_++] = unit;
    }
    carried_ = false;
    next_.split += planned;
    cut_ = units_[chain];
    return unit.complete;
  }

  void advance(uint32_t tokens, uint32_t count) {
    next_.split = 0;
    next_.token += tokens;
    if (next_.token < count) return;
    next_.token = 0;
    if (++next_.head < kv_heads_) return;
    next_.head = 0;
    ++next_.sequence;
  }

  void run_alone(const Unit& unit, const AttendTile& tile, float* memory) {
    const SoftmaxStates states = states_at(unit, memory), part = states_at(unit, memory + memory_.state);
    kernels_.split(tile, unit.split, states);
    for (uint32_t i = 1; i < unit.splits; ++i) {
      kernels_.split(tile, unit.split + i, part);
      kernels_.merge(states, part);
    }
    finish(unit, states);
  }

  // By the worker that finished last: the states of a chain's splits, earliest first, meet in the first.
  void close(const Unit& chain) {
    const size_t slot = memory_.slot(chain.tokens);
    const SoftmaxStates first = states_at(chain, partial_ + chain.partial);
    for (uint32_t i = 1; i < chain.slots; ++i) {
      kernels_.merge(first, states_at(chain, partial_ + chain.partial + i * slot));
    }
    if (chain.complete) finish(chain, first);
  }

  AttendTile tile_of(const Unit& unit, float* memory) const {
    const AttendRows& rows = sequences_[unit.sequence];
    AttendTile tile;
    tile.view = rows.view;
    tile.shape = &shape_;
    std::ranges::copy(sealed_, tile.sealed);
    std::ranges::copy(raw_, tile.raw);
    tile.unsealed = unsealed_;
    tile.layer = rows.layer;
    tile.head = unit.head;
    tile.first_position = rows.first_position + unit.first;
    tile.tokens = unit.tokens;
    tile.group = memory_.group;
    tile.q = memory;
    tile.scores = memory + memory_.q;
    tile.unseal_to = tile.scores + memory_.scores;
    kernels_.pack(tile, rows.q + unit.first * rows.q_stride + size_t{unit.head} * memory_.group * memory_.key_dim,
                  rows.q_stride);
    return tile;
  }

  void finish(const Unit& unit, const SoftmaxStates& states) const {
    const AttendRows& rows = sequences_[unit.sequence];
    for (uint32_t r = 0; r < states.rows; ++r) {
      const uint32_t query_head = unit.head * memory_.group + r % memory_.group;
      const float* sink = shape_.sinks == nullptr ? nullptr : shape_.sinks + query_head;
      float* result = rows.out + (unit.first + r / memory_.group) * rows.out_stride + size_t{query_head} * value_dim_;
      kernels_.finish(states, r, sink, value_dim_, result);
    }
  }

  const AttendKernels& kernels_;
  std::span<const AttendRows> sequences_;
  const AttentionShape& shape_;
  const Memory& memory_;
  const CodecKernels* sealed_[2];
  const CodecKernels* raw_[2];
  const DirectKernels* unsealed_;
  uint32_t kv_heads_, unit_tokens_;
  size_t value_dim_;
  float* workers_;
  float* partial_;
  Unit* units_;
  size_t count_ = 0;
  Cursor next_;
  bool carried_ = false;  // the chain at next_ has its earlier splits' states in the wave's first slot
  Unit cut_{};            // the chain that was planned last
};

}  // namespace

size_t attend_scratch_bytes(const AttendSizes& sizes, int threads) { return Memory(sizes).bytes(threads); }

Status AttendScratch::reserve(const AttendSizes& sizes, int threads) {
  return grow(slab_, attend_scratch_bytes(sizes, threads), MemoryTag::activations, ledger_);
}

void attend(SimdTarget target, std::span<const AttendRows> sequences, const AttentionShape& shape, ThreadPool& pool,
            AttendScratch& scratch) {
  if (sequences.empty()) return;
  const KvGroupLayer& layer = sequences[0].view->group->layers[sequences[0].layer];
  CHECK(has_keys_and_values(layer), "attention over a latent plane is not built");
  const AttendSizes sizes{shape.heads, layer.kv_heads, layer.planes[0].dims, layer.planes[1].dims};
  const Status reserved = scratch.reserve(sizes, pool.threads());
  CHECK(reserved.has_value(), reserved ? "" : reserved.error().message);
  const Memory memory(sizes);
  AttendCall call(target, sequences, shape, memory, pool.threads(), scratch.data());
  while (const size_t units = call.plan_wave()) {
    pool.run(units, [&](size_t unit, int worker) { call.run_unit(unit, worker); });
  }
}

}  // namespace kvarto
