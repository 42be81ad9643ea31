// Checks a request before it is queued: every number that makes no sense is an error naming the field. Pure; any
// thread.
#pragma once

#include <cstdint>

#include "kvarto/engine.h"

namespace kvarto {

// What requests are checked against; fixed for the life of an engine.
struct RequestLimits {
  uint32_t vocabulary = 0;
  uint32_t max_model_len = 0;
  uint32_t max_num_seqs = 0;
  uint64_t longest_sequence = 0;  // that fits the cache when nothing else is in it
  bool short_of_memory = false;   // max_model_len is what memory allows, less than the model's context
  bool has_text = true;
  bool priorities = false;  // the scheduling policy knows them
};

Status validate(const Request& request, const RequestLimits& limits);
Status validate(const EngineOptions& options);

}  // namespace kvarto
