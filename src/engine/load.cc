// From a file to an engine: read, plan, refuse or load.
#include "engine/load.h"

#include <algorithm>
#include <utility>

#include "backend/cpu_memory.h"
#include "base/cpu.h"
#include "base/float_mode.h"
#include "base/numerics.h"
#include "engine/engine_impl.h"
#include "model/list.h"

namespace kvarto {

KvLayoutOptions layout_options(const EngineOptions& options) {
  const KvDtype automatic = KvDtype::f16;  // what `auto` means for GGUF
  return {.block_tokens = options.block_size,
          .k_dtype = options.k_dtype.value_or(automatic),
          .v_dtype = options.v_dtype.value_or(automatic),
          .auto_dtype = automatic,
          .separate_tails = options.separate_tails};
}

namespace {

StepShape largest_step(const ModelConfig& config, const EngineOptions& options) {
  return step_shape(config, std::max<uint32_t>(options.max_num_batched_tokens, kLogitRows));
}

}  // namespace

Result<MemoryPlan> plan_for(const GgufFile& file, const ModelConfig& config, const KvLayout& layout,
                            const EngineOptions& options) {
  ASSIGN_OR_RETURN(const size_t weight_bytes, loaded_weight_bytes(file, options.reference));
  const size_t rows = most_logit_rows(options);
  const size_t scratch =
      cpu_scratch_bytes(largest_step(config, options), cpu_threads(options.threads), options.reference);
  return plan_memory({.available_bytes = available_memory_bytes(),
                      .weight_bytes = weight_bytes,
                      .activation_bytes = Workspace::bytes(config, options.max_num_batched_tokens) +
                                          Workspace::bytes_beside(config, most_decode_rows(options)) + scratch +
                                          rows * config.width * sizeof(float),
                      .logits_bytes = size_t{kLogitRows} * config.vocabulary * sizeof(float),
                      .layout = &layout,
                      .context_length = options.beyond_context ? std::max(config.context_length, options.max_model_len)
                                                               : config.context_length,
                      .max_model_len = options.max_model_len,
                      .max_num_seqs = options.max_num_seqs,
                      .max_num_batched_tokens = options.max_num_batched_tokens,
                      .kv_cache_memory_bytes = options.kv_cache_memory_bytes});
}

Result<EngineParts> load_parts(const std::shared_ptr<const GgufFile>& file, const EngineOptions& options,
                               SimdTarget target, const WrapBackend& wrap_backend) {
  RETURN_IF_ERROR(validate(options));
  ASSIGN_OR_RETURN(const ModelConfig config, read_config(*file));
  EngineParts parts;
  parts.options = options;
  ASSIGN_OR_RETURN(parts.layout, KvLayout::make(config.kv_geometry(), layout_options(options)));
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_for(*file, config, parts.layout, options));
  ASSIGN_OR_RETURN(parts.tokenizer, Tokenizer::from_gguf(*file));
  ASSIGN_OR_RETURN(const std::optional<std::string_view> chat_template, file->get_string("tokenizer.chat_template"));
  parts.chat_template = chat_template.value_or("");

  // Two files with equal contents may share blocks; two kinds of arithmetic or two layouts may not. Reads the whole
  // file, so before loading releases its pages.
  const std::string_view numerics = options.reference ? kNumericsF32 : kNumericsInt8;
  parts.name_space =
      "model=" + file->fingerprint() + " numerics=" + std::string(numerics) + " " + parts.layout.description();

  parts.ledger = std::make_shared<Ledger>(plan.total_bytes);
  std::shared_ptr<Backend> backend = cpu_backend(
      {.threads = options.threads, .ledger = parts.ledger, .target = target, .reference = options.reference});
  if (wrap_backend) backend = wrap_backend(std::move(backend), plan.max_model_len);
  ASSIGN_OR_RETURN(parts.model, load_model(file, backend, {.progress = options.progress}));
  RETURN_IF_ERROR(backend->reserve(largest_step(config, options)));
  ASSIGN_OR_RETURN(parts.workspace, Workspace::make(config, options.max_num_batched_tokens, parts.ledger));
  ASSIGN_OR_RETURN(parts.decode_workspace,
                   Workspace::make_beside(parts.workspace, config, most_decode_rows(options), parts.ledger));
  parts.kv_bytes = plan.kv_bytes;
  parts.options.max_model_len = plan.max_model_len;
  parts.memory = [ledger = parts.ledger, touch = options.touch_kv] {
    return std::make_shared<CpuMemory>(ledger, touch);
  };
  if (options.max_model_len == 0 && plan.max_model_len < config.context_length) {
    parts.info.max_model_len_reason = plan.max_model_len_reason;
  }
  parts.info.model_path = file->name();
  parts.info.model_fingerprint = file->fingerprint();
  parts.info.numerics = numerics;
  parts.info.simd_target = simd_target_name(backend->target());
  parts.info.threads = backend->threads();
  parts.info.weight_bytes = plan.lines.front().bytes;
  return parts;
}

Result<std::unique_ptr<Engine>> Engine::load(const std::string& gguf_path, const EngineOptions& options) {
  const FloatMode plain;
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(gguf_path));
  ASSIGN_OR_RETURN(EngineParts parts, load_parts(file, options));
  return assemble(std::move(parts));
}

}  // namespace kvarto
