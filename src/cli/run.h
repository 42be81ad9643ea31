// What `kvarto run` was asked to do; shared by its three forms: one prompt (run.cc), a chat, many prompts. Main thread.
#pragma once

#include <string>

#include "cli/options.h"

namespace kvarto {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
  bool raw = false;     // no chat template
  std::string prompts;  // JSONL file of many prompts
  std::string output;   // where their results go; "-" is stdout
};

Result<int> run_chat(Engine& engine, const RunFlags& flags);
Result<int> run_batch(const RunFlags& flags);

}  // namespace kvarto
