#include "cli/serve_plan.h"

#include <algorithm>
#include <cstdio>

#include "cli/output.h"
#include "engine/load.h"
#include "kv/layout.h"
#include "model/list.h"
#include "plan/planner.h"

namespace kvarto {
namespace {

constexpr size_t kLine = 64;  // an arena is whole cache lines

std::string number(uint64_t value) { return std::to_string(value); }

size_t other_bytes(const MemoryPlan& plan) {
  size_t bytes = plan.total_bytes;
  for (const PlanLine& line : plan.lines) {
    if (line.name == "kv_arena" || line.name == "kv_metadata") bytes -= line.bytes;
  }
  return bytes;
}

tl::unexpected<Error> no_memory(const std::string& why) {
  return fail(ErrorCode::out_of_memory, "No available memory for the cache blocks: " + why);
}

Result<Pool> share_of_memory(double share, const PoolNumbers& n) {
  const double room = share * static_cast<double>(n.available_bytes);
  const double left = room - static_cast<double>(n.other_bytes);
  const size_t bytes = left > 0 ? arena_in(*n.layout, static_cast<size_t>(left)) : 0;
  char text[32];
  std::snprintf(text, sizeof text, "%g", share);
  if (bytes == 0) {
    return no_memory("weights and buffers take " + gib(static_cast<double>(n.other_bytes)) +
                     " GiB, and gpu_memory_utilization " + text + " of the " +
                     gib(static_cast<double>(n.available_bytes)) +
                     " GiB of RAM available to this process is no more; raise --gpu-memory-utilization (it governs RAM "
                     "on the CPU backend), free memory or take a smaller model");
  }
  return Pool{bytes, true,
              std::string("gpu_memory_utilization ") + text + " of the " + gib(static_cast<double>(n.available_bytes)) +
                  " GiB available to this process, less weights and buffers"};
}

// Requested and largest length, as vLLM's refusal says it.
tl::unexpected<Error> too_long(uint32_t asked, size_t needed, const Pool& pool, uint64_t longest) {
  std::string text = "--max-model-len " + number(asked) + ": one request of " + number(asked) + " tokens needs " +
                     gib(static_cast<double>(needed)) + " GiB of KV cache, and " +
                     gib(static_cast<double>(pool.bytes)) + " GiB are available (" + pool.reason + ")";
  if (longest > 0) text += "; the estimated maximum model length is " + number(longest);
  return fail(ErrorCode::out_of_memory,
              text + "; lower --max-model-len, or raise --kv-cache-memory-bytes or --gpu-memory-utilization");
}

tl::unexpected<Error> beyond_context(uint32_t asked, const ModelConfig& config, uint64_t longest) {
  return fail(ErrorCode::invalid_argument,
              "--max-model-len " + number(asked) + " is greater than the " + number(config.context_length) +
                  " tokens that the model was made for (" + config.architecture +
                  ".context_length of its GGUF file); positions beyond may give wrong text; the estimated maximum "
                  "model length is " +
                  number(longest) + ": give --max-model-len " + number(longest) +
                  " or auto, or allow it all the same with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1");
}

// The length is known: `longest` is what the pool holds, at most the context.
Status settle_length(const ServeFlags& flags, const ModelConfig& config, const KvLayout& layout, uint64_t longest,
                     ServePlan& out) {
  const uint32_t asked = flags.engine.max_model_len;
  if (asked > config.context_length) {
    if (!flags.engine.beyond_context) return beyond_context(asked, config, longest);
    out.warnings.push_back("--max-model-len " + number(asked) + " is greater than the " +
                           number(config.context_length) +
                           " tokens that the model was made for: positions beyond may give wrong text "
                           "(VLLM_ALLOW_LONG_MAX_MODEL_LEN is set)");
  }
  if (asked > longest) {
    const size_t needed = layout.bytes_for_sequence(asked, out.options.max_num_batched_tokens);
    return too_long(asked, needed, out.pool, longest);
  }
  if (longest == 0) {
    return fail(ErrorCode::out_of_memory, "Cannot auto-fit max_model_len: the KV cache of " + number(out.pool.bytes) +
                                              " bytes does not hold one block of each group of layers; raise "
                                              "--kv-cache-memory-bytes");
  }
  if (!flags.fit_max_model_len) return {};
  out.options.max_model_len = static_cast<uint32_t>(longest);
  const std::string size = gib(static_cast<double>(out.pool.bytes)) + " GiB of KV cache";
  out.notes.push_back(longest == config.context_length
                          ? "Auto-fit max_model_len: full model context length " + number(longest) + " fits " + size
                          : "Auto-fit max_model_len: reduced from " + number(config.context_length) + " to " +
                                number(longest) + ", which is what " + size + " hold");
  return {};
}

}  // namespace

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", bytes / (1 << 30));
  return text;
}

size_t arena_in(const KvLayout& layout, size_t room) {
  size_t low = 0, high = room / kLine;  // in lines
  while (low < high) {
    const size_t middle = high - (high - low) / 2;
    if (middle * kLine + metadata_bytes(layout, middle * kLine) <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * kLine;
}

Result<Pool> choose_pool(const MemoryFlags& flags, const PoolNumbers& n) {
  if (flags.kv_bytes) return Pool{*flags.kv_bytes, true, "as asked for in bytes"};
  if (flags.blocks) {
    size_t block = 0;
    for (const KvGroup& group : n.layout->groups()) block += group.block_bytes;
    return Pool{*flags.blocks * block, true, "num_gpu_blocks_override " + number(*flags.blocks)};
  }
  if (flags.utilization) return share_of_memory(*flags.utilization, n);
  const size_t half = n.available_bytes / 2 / kLine * kLine;
  const bool enough = n.useful_bytes <= half;
  const std::string what =
      enough ? "all that --max-num-seqs requests of maximum length can use, or what weights leave"
             : "half of the " + gib(static_cast<double>(n.available_bytes)) + " GiB available to this process";
  return Pool{std::min(half, n.useful_bytes), false,
              what + "; --kv-cache-memory-bytes or --gpu-memory-utilization change it"};
}

Result<ServePlan> plan_serve(const GgufFile& file, const ServeFlags& flags) {
  ServePlan out;
  out.options = flags.engine;
  ASSIGN_OR_RETURN(const ModelConfig config, read_config(file));
  ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::make(config.kv_geometry(), layout_options(flags.engine)));

  // First as if nothing were asked for: what all but the KV cache takes does not depend on that.
  EngineOptions free = flags.engine;
  free.kv_cache_memory_bytes = 0;
  free.max_model_len = 0;
  const Result<MemoryPlan> first = plan_for(file, config, layout, free);
  if (!first) return no_memory(first.error().message);
  const uint32_t most =
      flags.engine.beyond_context ? std::max(flags.engine.max_model_len, config.context_length) : config.context_length;
  free.max_model_len = std::min(flags.engine.max_model_len, most);
  const Result<MemoryPlan> wanted = plan_for(file, config, layout, free);
  ASSIGN_OR_RETURN(out.pool, choose_pool(flags.memory, {.available_bytes = first->available_bytes,
                                                        .other_bytes = other_bytes(*first),
                                                        .useful_bytes = wanted ? wanted->kv_bytes : first->kv_bytes,
                                                        .layout = &layout}));
  out.options.kv_cache_memory_bytes = out.pool.bytes;
  out.options.touch_kv = out.pool.asked;
  // More than there is gets refused before anything is made in that size.
  if (out.pool.bytes > first->available_bytes) {
    ASSIGN_OR_RETURN(out.plan, plan_for(file, config, layout, out.options));
  }
  const uint64_t longest = longest_that_fits(layout, out.pool.bytes, out.options.max_num_batched_tokens, most);
  RETURN_IF_ERROR(settle_length(flags, config, layout, longest, out));
  ASSIGN_OR_RETURN(out.plan, plan_for(file, config, layout, out.options));
  // The planner was told what was chosen here, and takes that for asked for.
  for (PlanLine& line : out.plan.lines) {
    if (line.name == "kv_arena") line.reason = out.pool.reason;
  }
  if (flags.engine.max_model_len == 0 && out.options.max_model_len > 0) {
    out.plan.max_model_len_reason = longest == config.context_length
                                        ? "the model's context length"
                                        : "what " + gib(static_cast<double>(out.pool.bytes)) + " GiB of KV cache hold";
  }
  return out;
}

std::string plan_table(const MemoryPlan& plan) {
  std::string out = "plan: " + human_bytes(static_cast<double>(plan.total_bytes)) + " of " +
                    human_bytes(static_cast<double>(plan.available_bytes)) + " available";
  for (const PlanLine& line : plan.lines) {
    char head[64];
    std::snprintf(head, sizeof head, "\n  %-12s %10s  ", line.name.c_str(),
                  human_bytes(static_cast<double>(line.bytes)).c_str());
    out += head + line.reason;
  }
  return out;
}

}  // namespace kvarto
