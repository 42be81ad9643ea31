// Subject: who is asked. An engine under one setting (engine_subject.h), or a server (server_subject.h). One thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "eval/task.h"
#include "kvarto/result.h"

namespace kvarto {

// How likely a text was behind a prompt, all of it given.
struct Likelihood {
  double nll = 0;       // negative log-likelihood of the whole text, nats
  uint32_t tokens = 0;  // of it
  bool greedy = false;  // each of its tokens was the likeliest: generating by argmax would write it
};

class Subject {
 public:
  virtual ~Subject() = default;
  // An error of code invalid_argument, here and below, means that this task was refused, and others may go on; any
  // other ends the run.

  // Nothing when this subject cannot tell (a server without log-probabilities of prompts). `floor`: behind
  // task.floor_prompt instead. A model whose numbers overflow: infinity.
  virtual Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor) = 0;
  // What it writes for each task, by argmax, cut at the task's stop strings. `done` is called once per task in any
  // order, as they end, with the text or with why there is none; what it fails with ends the call and is returned.
  virtual Status generate(std::span<const Task* const> tasks,
                          const std::function<Status(size_t index, Result<std::string> text)>& done) = 0;
};

}  // namespace kvarto
