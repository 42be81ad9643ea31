// What an engine is assembled from: Engine::load makes these from a file, tests make them by hand. Moved into the
// engine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/memory.h"
#include "engine/clock.h"
#include "engine/cost_model.h"
#include "kvarto/engine.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kvarto {

struct EngineParts {
  std::shared_ptr<const Model> model;
  Workspace workspace;
  Workspace decode_workspace;  // beside it, for steps that find a pass in it that is not done
  KvLayout layout;
  size_t kv_bytes = 0;
  std::string name_space;                                // see KvCacheOptions
  std::function<std::shared_ptr<BlockMemory>()> memory;  // a new one for each cache; a failed step costs the cache
  std::shared_ptr<Ledger> ledger;                        // may be null
  std::shared_ptr<const Tokenizer> tokenizer;            // null: tokens only, no text
  std::string chat_template;                             // source; empty: none
  std::shared_ptr<const Clock> clock;                    // null: a steady clock
  std::shared_ptr<CostModel> cost;                       // null: learns online
  EngineOptions options;                                 // max_model_len 0: the context length or what fits
  std::function<void(const StepReport&)> observer;       // see Engine::observe; may be empty
  EngineInfo info;                                       // what the loader knows; assemble() fills in the rest

  // For the engine's owner, outside of a step: a call of its own on the engine or its cache failed by a bug of ours
  // (see CHECK). The same happens as when a step fails.
  static void poison(Engine& engine, const std::string& what);
};

}  // namespace kvarto
