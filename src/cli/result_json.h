// Results of requests as JSON objects in text form; keys keep their order. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/generation.h"

namespace kvarto {

// text, tokens, finish_reason (and stop_string, logprobs, logits_sha256 where there are any) of one sample.
nlohmann::ordered_json sample_json(const SampleResult& sample, const Engine& engine);
// Adds the first sample's fields to `object`, and "samples" with all when there are several.
void add_samples(nlohmann::ordered_json& object, const RequestResult& result, const Engine& engine);
// What `kvarto run --json` prints.
std::string run_json(const Generation& generation, const Engine& engine);

}  // namespace kvarto
