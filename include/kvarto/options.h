// Options of an engine, and how each token is chosen. Plain data with the defaults that suit most; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvarto/types.h"

namespace kvarto {

// Options that change memory or speed only; no output depends on them, apart from the KV dtypes and `reference`.
struct EngineOptions {
  int threads = 0;                                    // 0: one per physical core that the process may use
  uint32_t block_size = 16;                           // tokens per KV block: 16, 32, 64, 128 or 256
  std::optional<KvDtype> k_dtype = {}, v_dtype = {};  // nullopt: auto (f16 for GGUF)
  size_t kv_cache_memory_bytes = 0;                   // 0: what the plan finds sensible for this machine
  uint32_t max_model_len = 0;                         // longest prompt + output; 0: the model's own, or what fits
  uint32_t max_num_seqs = 64;                         // sequences that run at once
  uint32_t max_num_batched_tokens = 512;              // tokens computed in one step, at most
  double max_step_ms = 0.0;  // longest step while anything decodes; 0: 2.5x the decode-only step
  bool enable_prefix_caching = true;
  // Quantised weights are dequantised and all is computed in float32: the numerics id f32-1 instead of int8-1. Slow.
  bool reference = false;
  bool separate_tails = false;  // tests: see KvLayoutOptions
  uint64_t seed = 0;            // of requests that bring none
  // Called while loading takes its time: bytes done, bytes in all. May be empty.
  std::function<void(size_t, size_t)> progress = {};
};

// vLLM's names and defaults. Order of use: min_tokens and logit_bias, penalties (repetition, then frequency and
// presence), temperature (0: argmax, lowest id on ties), min_p, top_k, top_p, one draw.
struct SamplingParams {
  uint32_t n = 1;  // samples of one prompt; at most max_num_seqs
  // > 0: beam search with so many beams (at least n, at most max_num_seqs) instead of sampling; the n best are
  // returned, by the mean log-probability of their tokens. Fields below that shape a distribution, stop strings,
  // logprobs and hash_logits are refused with it.
  uint32_t beam_width = 0;
  uint32_t max_tokens = 16;                                 // >= 1; ends earlier at max_model_len
  uint32_t min_tokens = 0;                                  // no stop token or stop string before; at most max_tokens
  float temperature = 1.0f;                                 // [0, 2]; below 1e-5: argmax
  float top_p = 1.0f;                                       // (0, 1]
  int32_t top_k = 0;                                        // 0 or -1: off
  float min_p = 0.0f;                                       // [0, 1]
  float repetition_penalty = 1.0f;                          // > 0; over prompt and output
  float frequency_penalty = 0.0f, presence_penalty = 0.0f;  // [-2, 2]; over output
  std::vector<std::pair<TokenId, float>> logit_bias = {};   // clamped to [-100, 100]
  std::vector<std::string> stop = {};                       // at most 64, of 1 to 1024 bytes
  std::vector<TokenId> stop_token_ids = {};
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  std::optional<uint64_t> seed = {};
  // Report so many alternatives per token, at most 1024 (0: only the chosen one's).
  std::optional<uint32_t> logprobs = {};
};

}  // namespace kvarto
