#include "plan/planner.h"

#include <algorithm>
#include <limits>

#include "kv/block_pool.h"
#include "kv/layout.h"

namespace kvarto {
namespace {

std::string number(uint64_t n) { return std::to_string(n); }

// The arena as the cache will cut it into slabs: sizes that share it cost the rounding of their slabs.
class ArenaShape {
 public:
  ArenaShape(const KvLayout& layout, size_t bytes)
      : layout_(layout), class_bytes_(classes_of(layout)), pool_(nullptr, bytes / 64 * 64, class_bytes_) {}

  static std::vector<size_t> classes_of(const KvLayout& layout) {
    std::vector<size_t> classes;
    const auto add = [&](size_t bytes) {
      if (std::ranges::find(classes, bytes) == classes.end()) classes.push_back(bytes);
    };
    for (const KvGroup& group : layout.groups()) {
      add(group.block_bytes);
      if (!group.tail_is_block) add(group.tail_bytes);
    }
    return classes;
  }

  bool fits(uint64_t tokens, uint32_t chunk_tokens) const {
    std::vector<uint64_t> counts(class_bytes_.size(), 0);
    const auto count = [&](size_t bytes) -> uint64_t& {
      return counts[static_cast<size_t>(std::ranges::find(class_bytes_, bytes) - class_bytes_.begin())];
    };
    for (const KvGroup& group : layout_.groups()) {
      const GroupNeed need = group_need(group, layout_.block_tokens(), tokens, chunk_tokens);
      count(group.block_bytes) += need.blocks;
      if (need.tails > 0) count(group.tail_bytes) += need.tails;
    }
    return pool_.fits(counts);
  }

 private:
  const KvLayout& layout_;
  std::vector<size_t> class_bytes_;
  BlockPool pool_;
};

// The arena of a default plan: what memory leaves, but never more than all sequences at full length could use.
struct Budget {
  size_t bytes = 0;
  std::string reason;
};

size_t saturating_multiply(size_t a, size_t b) {
  return a != 0 && b > std::numeric_limits<size_t>::max() / a ? std::numeric_limits<size_t>::max() : a * b;
}

// The largest arena that fits `room` bytes together with what is known about its blocks, which lies beside them.
size_t largest_arena(const KvLayout& layout, size_t room) {
  size_t low = 0, high = room / 64;  // in lines of 64 bytes
  while (low < high) {
    const size_t middle = high - (high - low) / 2;
    if (middle * 64 + metadata_bytes(layout, middle * 64) <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * 64;
}

Result<Budget> choose_budget(const PlanInput& in, size_t other_bytes, uint32_t length) {
  if (in.kv_cache_memory_bytes > 0) {
    const size_t largest =
        in.available_bytes > other_bytes ? largest_arena(*in.layout, in.available_bytes - other_bytes) : 0;
    if (in.kv_cache_memory_bytes > largest) {
      return fail(ErrorCode::out_of_memory,
                  "kv_cache_memory_bytes " + number(in.kv_cache_memory_bytes) + ", the records of its blocks and " +
                      number(other_bytes) + " bytes of weights and buffers exceed the " + number(in.available_bytes) +
                      " bytes available; give at most " + number(largest));
    }
    return Budget{in.kv_cache_memory_bytes, "as asked for"};
  }
  const auto usable = static_cast<size_t>(kPlanShare * static_cast<double>(in.available_bytes));
  if (usable <= other_bytes) {
    return fail(ErrorCode::out_of_memory, "weights and buffers need " + number(other_bytes) + " bytes, and " +
                                              number(usable) + " of the " + number(in.available_bytes) +
                                              " bytes available may be used; take a smaller model or free memory");
  }
  const size_t left = largest_arena(*in.layout, usable - other_bytes);
  size_t useful =
      saturating_multiply(in.layout->bytes_for_sequence(length, in.max_num_batched_tokens), in.max_num_seqs);
  const std::vector<size_t> classes = ArenaShape::classes_of(*in.layout);
  if (classes.size() > 1 && useful <= left) {  // room for the slabs that are not full
    useful += (classes.size() + 1) * BlockPool::slab_bytes(useful, classes);
  }
  if (useful <= left) {
    return Budget{useful, number(in.max_num_seqs) + " sequences of " + number(length) + " tokens can use no more"};
  }
  return Budget{left, "what 90 % of available memory leaves (`kvarto serve`: at most half)"};
}

// Raw tiles of the blocks that a step begins and ends, one layer at a time; none where tails seal in place.
size_t scratch_bytes(const KvLayout& layout, uint32_t step_tokens) {
  size_t slot_bytes = 0;
  bool needed = false;
  for (const KvGroup& group : layout.groups()) {
    needed |= !group.tail_is_block;
    for (const KvGroupLayer& layer : group.layers) slot_bytes = std::max(slot_bytes, layer.raw_bytes());
  }
  return needed ? step_tokens / layout.block_tokens() * slot_bytes : 0;
}

// The least arena that holds one sequence of `tokens` tokens, slabs included.
size_t arena_for(const KvLayout& layout, uint64_t tokens, uint32_t chunk_tokens) {
  size_t low = layout.bytes_for_sequence(tokens, chunk_tokens) / 64, high = low;  // in lines of 64 bytes
  while (!ArenaShape(layout, high * 64).fits(tokens, chunk_tokens)) {
    low = high + 1;
    high += high / 4 + 1;
  }
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (ArenaShape(layout, middle * 64).fits(tokens, chunk_tokens)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low * 64;
}

}  // namespace

uint64_t longest_that_fits(const KvLayout& layout, size_t bytes, uint32_t chunk_tokens, uint64_t limit) {
  const uint64_t block = layout.block_tokens();
  if (bytes < layout.bytes_for_sequence(1, 1)) return 0;
  const ArenaShape arena(layout, bytes);
  uint64_t low = 0, high = (limit + block - 1) / block;  // in blocks
  while (low < high) {
    const uint64_t middle = (low + high + 1) / 2;
    if (arena.fits(middle * block, chunk_tokens)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return std::min(low * block, limit);
}

Result<MemoryPlan> plan_memory(const PlanInput& in) {
  if (in.max_model_len > in.context_length) {
    return fail(ErrorCode::invalid_argument, "max_model_len " + number(in.max_model_len) +
                                                 " exceeds the model's context of " + number(in.context_length) +
                                                 " tokens; give at most that");
  }
  const uint32_t wanted = in.max_model_len > 0 ? in.max_model_len : in.context_length;
  const size_t kv_scratch_bytes = scratch_bytes(*in.layout, in.max_num_batched_tokens);
  const size_t other_bytes =
      in.weight_bytes + in.activation_bytes + in.logits_bytes + kv_scratch_bytes + kOverheadBytes;
  ASSIGN_OR_RETURN(const Budget budget, choose_budget(in, other_bytes, wanted));

  const uint64_t longest = longest_that_fits(*in.layout, budget.bytes, in.max_num_batched_tokens, wanted);
  const size_t needed = longest < wanted ? arena_for(*in.layout, wanted, in.max_num_batched_tokens) : 0;
  if (longest == 0 || (longest < wanted && in.max_model_len > 0)) {
    return fail(ErrorCode::out_of_memory, "max_model_len " + number(wanted) + " needs " + number(needed) +
                                              " bytes of KV cache and " + number(budget.bytes) + " are there (" +
                                              budget.reason + "); the largest length that fits is " + number(longest) +
                                              (in.kv_cache_memory_bytes > 0 ? ", or raise kv_cache_memory_bytes" : ""));
  }

  MemoryPlan plan;
  plan.lines = {
      {"weights", in.weight_bytes, "all tensors as the kernels read them"},
      {"kv_arena", budget.bytes, budget.reason},
      {"kv_scratch", kv_scratch_bytes, "blocks that one step begins and ends, before they are sealed"},
      {"kv_metadata", metadata_bytes(*in.layout, budget.bytes), "records of blocks and names of prefixes, at most"},
      {"activations", in.activation_bytes, "one step of " + number(in.max_num_batched_tokens) + " tokens"},
      {"logits", in.logits_bytes, "made a few rows at a time"},
      {"overhead", kOverheadBytes, "tokenizer, stacks, code"}};
  plan.kv_bytes = budget.bytes;
  plan.available_bytes = in.available_bytes;
  for (const PlanLine& line : plan.lines) plan.total_bytes += line.bytes;
  plan.max_model_len = static_cast<uint32_t>(longest);
  plan.max_model_len_reason = in.max_model_len > 0 ? "as asked for"
                              : longest == wanted  ? "the model's context length"
                                                   : "the model's context of " + number(wanted) + " tokens needs " +
                                                        number(needed) + " bytes of KV cache, more than there is";
  plan.kv_tokens = budget.bytes / in.layout->bytes_per_token();
  plan.full_requests = budget.bytes / in.layout->bytes_for_sequence(longest, in.max_num_batched_tokens);
  return plan;
}

}  // namespace kvarto
