// A model under one setting as a subject of evaluation. Same thread as the engine's owner.
#pragma once

#include <functional>
#include <memory>

#include "eval/setting.h"
#include "eval/subject.h"
#include "format/gguf.h"
#include "kvarto/engine.h"

namespace kvarto {

// An engine whose KV cache is kept as the setting says, with its faults planted.
Result<std::unique_ptr<Engine>> load_setting(const std::shared_ptr<const GgufFile>& file, EngineOptions options,
                                             const Setting& setting);
struct SubjectOptions {
  // A candidate: where its numbers overflow, likelihoods are infinite and texts end. Otherwise that is an error, since
  // nothing can be compared with what is no number.
  bool may_overflow = false;
  std::function<bool()> cancelled = {};  // ends a likelihood with ErrorCode::cancelled; asked every few hundred tokens
};
// Prompt and answer are encoded apart and joined by ids, so the join is the same under all settings. A likelihood takes
// one pass over both, the prompt read from the prefix cache where it can be; generating runs all tasks at once.
// `engine` outlives it.
std::unique_ptr<Subject> engine_subject(Engine& engine, SubjectOptions options = {});

}  // namespace kvarto
