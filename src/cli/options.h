// Flags that several verbs share, declared once: the model and its engine (vLLM's names), and how tokens are chosen.
// Main thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"
#include "kvarto/engine.h"

namespace kvarto {

// A flag whose value is a whole number (also optional, or several times) in plain decimal digits.
template <typename T>
CLI::Option* add_count(CLI::App& app, const std::string& name, T& value, const std::string& text);

struct ModelFlags {
  std::string model;
  EngineOptions engine;
  std::optional<uint32_t> max_num_seqs;  // a verb chooses when nobody else did
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_memory_bytes = "0";
  bool quiet = false;
};
void add_model_flag(CLI::App& app, ModelFlags& flags, bool required = true);
// Those that shape memory and steps. `threads` is left out where a verb has its own.
void add_engine_flags(CLI::App& app, ModelFlags& flags, bool threads = true);
void add_plan_flags(CLI::App& app, ModelFlags& flags);  // the subset that changes the plan: `inspect` has it too
// The options as the engine takes them. `seqs` holds when --max-num-seqs was not given.
Result<EngineOptions> engine_options(const ModelFlags& flags, uint32_t seqs);
// Resolves MODEL, says which file it is, loads it behind a progress bar.
Result<std::unique_ptr<Engine>> load_engine(const ModelFlags& flags, const EngineOptions& options);
// Resolves MODEL and says which file it is.
Result<std::string> find_model(const ModelFlags& flags);

struct SamplingFlags {
  SamplingParams params;
  std::optional<float> temperature;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> logprobs;
  uint32_t sample_index = 0;
  std::string cache_salt;
  bool logits_hash = false;
};
void add_sampling_flags(CLI::App& app, SamplingFlags& flags);
// `temperature` holds when --temperature was not given.
SamplingParams sampling_params(const SamplingFlags& flags, float temperature);

// "512", "64M", "2G", "1.5GiB": capital letters count in 1,024s, small ones in 1,000s, as in vLLM.
Result<size_t> parse_bytes(std::string_view text);
// "0,4096,16384"; `example` is what an error proposes.
Result<std::vector<uint32_t>> parse_counts(std::string_view flag, std::string_view text, std::string_view example);
// A JSON array of ids, or ids between white space and commas.
Result<std::vector<TokenId>> parse_ids(std::string_view text);
// A file's content; "-" is stdin. One of more than `max_bytes` is an error of code invalid_argument.
Result<std::string> read_input(const std::string& path, size_t max_bytes = size_t{1} << 30);

}  // namespace kvarto
