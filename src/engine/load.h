// The steps of Engine::load: what it decides before it reads a weight (`kvarto inspect` shows the same), and the parts
// that it loads, also from a file in memory or for another SIMD target. Free functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "backend/backend.h"
#include "base/cpu.h"
#include "engine/engine_parts.h"
#include "format/gguf.h"
#include "kvarto/options.h"
#include "kvarto/plan.h"
#include "model/config.h"

namespace kvarto {

KvLayoutOptions layout_options(const EngineOptions& options);
Result<MemoryPlan> plan_for(const GgufFile& file, const ModelConfig& config, const KvLayout& layout,
                            const EngineOptions& options);
// Puts a backend around the one that the model computes with; `max_model_len` is the longest sequence it will see.
// Whoever changes results that way says so in EngineParts::name_space.
using WrapBackend = std::function<std::shared_ptr<Backend>(std::shared_ptr<Backend>, uint64_t max_model_len)>;
Result<EngineParts> load_parts(const std::shared_ptr<const GgufFile>& file, const EngineOptions& options,
                               SimdTarget target = best_target(), const WrapBackend& wrap_backend = {});

}  // namespace kvarto
