// The steps of Engine::load: what it decides before it reads a weight (`kvarto inspect` shows the same), and the parts
// that it loads, also from a file in memory or for another SIMD target. Free functions; any thread.
#pragma once

#include <memory>

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
Result<EngineParts> load_parts(const std::shared_ptr<const GgufFile>& file, const EngineOptions& options,
                               SimdTarget target = best_target());

}  // namespace kvarto
