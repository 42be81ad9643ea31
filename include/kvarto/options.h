// Options of an engine, and how each token is chosen. Plain data with the defaults that suit most; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvarto/kv_events.h"
#include "kvarto/types.h"

namespace kvarto {

enum class SchedulingPolicy : uint8_t { fcfs, priority };
// What logprobs report: of the model's own distribution, or of the one a token was drawn from (after bias, penalties,
// temperature, min_p, top_k and top_p); as log-probabilities, or as logits. prompt_logprobs are raw always.
enum class LogprobsMode : uint8_t { raw_logprobs, processed_logprobs, raw_logits, processed_logits };

// Options that change memory or speed only; no output depends on them, apart from the KV dtypes, `reference` and
// `logprobs_mode`.
struct EngineOptions {
  int threads = 0;                                    // 0: one per physical core that the process may use
  uint32_t block_size = 16;                           // tokens per KV block: 16, 32, 64, 128 or 256
  std::optional<KvDtype> k_dtype = {}, v_dtype = {};  // nullopt: auto (f16 for GGUF)
  size_t kv_cache_memory_bytes = 0;                   // 0: what the plan finds sensible for this machine
  bool touch_kv = false;                  // all pages of the KV cache are touched while loading, not as used
  uint32_t max_model_len = 0;             // longest prompt + output; 0: the model's own, or what fits
  bool beyond_context = false;            // max_model_len may be more than the model was made for
  uint32_t max_num_seqs = 64;             // sequences that run at once
  uint32_t max_num_batched_tokens = 512;  // tokens computed in one step, at most
  // Where this leaves prompts no time, one layer (of more than 32: two and so on) of them goes on in each step.
  double max_step_ms = 0.0;                   // longest step while anything decodes; 0: 2.8x the slow decode-only ones
  uint32_t long_prefill_token_threshold = 0;  // most tokens of one prompt in one step; 0: no limit of its own
  // fcfs: by arrival, and requests have no priority. priority: smaller first, ties by arrival; see priority_aging_ms.
  SchedulingPolicy scheduling_policy = SchedulingPolicy::fcfs;
  // A request that waits counts as one more important for every so many milliseconds of waiting, in admission and
  // preemption, so that low priorities get their turn. 0: never.
  uint32_t priority_aging_ms = 10'000;
  double watermark = 0.0;  // [0, 1): share of the KV cache that no admission beside running requests may use
  bool enable_prefix_caching = true;
  LogprobsMode logprobs_mode = LogprobsMode::raw_logprobs;
  // Quantised weights are dequantised and all is computed in float32: the numerics id f32-1 instead of int8-1. Slow.
  bool reference = false;
  bool separate_tails = false;  // tests: see KvLayoutOptions
  // For those who watch the KV cache: see the fields of KvCacheOptions with these names. Times are the engine's
  // clock's.
  bool record_kv_events = false;
  size_t kv_event_bytes = size_t{16} << 20;
  double kv_life_sample = 0.0;
  std::function<void(const BlockLife&)> on_kv_life = {};
  uint64_t seed = 0;  // of requests that bring none
  // Called while loading takes its time: bytes done, bytes in all. May be empty.
  std::function<void(size_t, size_t)> progress = {};
};

// vLLM's names and defaults. Order of use: allowed_token_ids, bad_words, min_tokens and logit_bias, penalties
// (repetition, then frequency and presence), temperature (0: argmax, lowest id on ties), min_p, top_k, top_p, one draw.
struct SamplingParams {
  uint32_t n = 1;  // samples of one prompt; at most max_num_seqs
  // > 0: beam search with so many beams (at least n, at most max_num_seqs) instead of sampling; the n best are
  // returned, by the sum of their tokens' log-probabilities over (their number to the power of length_penalty). Fields
  // below that shape a distribution, stop strings, logprobs and hash_logits are refused with it.
  uint32_t beam_width = 0;
  float length_penalty = 1.0f;                              // finite; of beams only
  uint32_t max_tokens = 16;                                 // >= 1 (0: see Request); ends earlier at max_model_len
  uint32_t min_tokens = 0;                                  // no stop token or stop string before; at most max_tokens
  float temperature = 1.0f;                                 // [0, 2]; below 1e-5: argmax
  float top_p = 1.0f;                                       // (0, 1]
  int32_t top_k = 0;                                        // 0 or -1: off
  float min_p = 0.0f;                                       // [0, 1]
  float repetition_penalty = 1.0f;                          // > 0; over prompt and output
  float frequency_penalty = 0.0f, presence_penalty = 0.0f;  // [-2, 2]; over output
  std::vector<std::pair<TokenId, float>> logit_bias = {};   // clamped to [-100, 100]
  std::vector<TokenId> allowed_token_ids = {};              // nothing else is chosen; empty: anything is
  // Sequences of ids that the output will not contain: the last id is not chosen where the others have just been. At
  // most 1024, of 16,384 ids in all.
  std::vector<std::vector<TokenId>> bad_words = {};
  std::vector<std::string> stop = {};  // at most 64, of 1 to 1024 bytes
  std::vector<TokenId> stop_token_ids = {};
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;  // also the text of a stop token, where it is to be shown
  bool skip_special_tokens = true;          // false: the text shows them, but for the stop token at its end
  std::optional<uint64_t> seed = {};
  // Report so many alternatives per token, at most 1024 (0: only the chosen one's).
  std::optional<uint32_t> logprobs = {};
};

}  // namespace kvarto
