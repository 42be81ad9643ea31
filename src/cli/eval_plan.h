// What `kvarto eval` is asked for, and the run that follows from it: settings, texts, tasks, facts. Reads the model's
// file and asks servers who they are; loads no weights. Main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "eval/run.h"
#include "eval/server_subject.h"
#include "eval/setting.h"
#include "format/gguf.h"

namespace kvarto {

struct EvalFlags {
  ModelFlags model;
  std::string baseline = "kv=f16";
  bool baseline_given = false;
  std::vector<std::string> candidates, urls, texts;
  std::string api_key, served_model, tasks, only;
  std::optional<uint32_t> context, samples, text_pieces;  // none: see plan_eval()
  uint64_t seed = 1;
  std::string output = "kvarto-eval";
  bool dump = false, json = false, fresh = false, quick = false;
  std::optional<double> max_drop;
};

struct EvalPlan {
  EvalWork work;                         // its contestants are the caller's
  std::shared_ptr<const GgufFile> file;  // null: servers only
  EngineOptions options;                 // of every engine; settings are laid over them
  std::vector<Setting> settings;         // of the engines
  std::vector<FoundServer> servers;      // those that follow
  std::vector<std::string> notes;        // what was left out, or is not as usual
};
Result<EvalPlan> plan_eval(const EvalFlags& flags);

}  // namespace kvarto
