// Engine: a loaded model, its paged KV cache and the scheduler that shares both among requests. Embeddable: installs no
// signal handler, keeps no global state, frees everything on destruction.
//
//   auto engine = Engine::load("model.gguf", {});
//   auto ids = (*engine)->encode("Hello");
//   auto result = (*engine)->generate({.prompt = *ids, .sampling = {.max_tokens = 32}});
//
// One thread owns an engine and calls step(); submit() and cancel() may be called by any thread. Text of a request
// depends on its tokens and sampling alone: a cache hit, a neighbour in the batch, chunking or preemption never change
// a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvarto/kv_cache.h"
#include "kvarto/options.h"
#include "kvarto/result.h"
#include "kvarto/types.h"

namespace kvarto {

using RequestId = uint64_t;

enum class FinishReason : uint8_t { none, stop, length, cancelled, error };
std::string_view finish_reason_name(FinishReason reason);  // "stop"

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;  // natural log; what it is of: EngineOptions::logprobs_mode
};

// What the model made of one token of the prompt, given those before it.
struct PromptLogprob {
  TokenId token = 0;
  std::optional<float> logprob = {};   // none for the first token
  uint32_t rank = 0;                   // 1: the likeliest (of equals the lowest id is first); 0 for the first token
  std::vector<TokenLogprob> top = {};  // as many alternatives as asked for, best first
};

// One generated token of one sample. The last event of every sample, and no other, has `finish` set; a sample ended
// from outside (cancelled, failed) gets a last event without a token. Events of a step come when it is done. Views are
// valid during the call.
struct TokenEvent {
  RequestId request = 0;
  uint32_t sample = 0;  // index in [0, n)
  std::optional<TokenId> token = {};
  std::string_view text = {};  // what may be shown now; may be empty (unfinished character, possible stop string)
  FinishReason finish = FinishReason::none;
  std::optional<float> logprob = {};       // when logprobs were asked for
  std::span<const TokenLogprob> top = {};  // alternatives, best first
  std::string_view stop_string = {};       // with the last event: see SampleResult
  std::optional<TokenId> stop_token = {};  //
  bool stop_was_eos = false;               //
  uint64_t time_us = 0;                    // of the engine's clock: when its step was done
  uint64_t cached_tokens = 0;              // of the prompt, read from the cache; 0 until it was scheduled
  // With the first event of a request behind its whole prompt, and no other; when they were asked for.
  std::span<const PromptLogprob> prompt_logprobs = {};
};

struct SampleResult {
  std::vector<TokenId> tokens;  // including the stop token when one ended it
  std::string text;             // without it
  FinishReason finish = FinishReason::none;
  std::string stop_string;                              // the one that matched, if any
  std::optional<TokenId> stop_token;                    // the one that ended it, if any
  bool stop_was_eos = false;                            // stop_token is one of stop_ids(), that end every generation
  double cumulative_logprob = 0.0;                      // when logprobs were asked for, and of beams
  std::vector<TokenLogprob> token_logprobs;             // when logprobs were asked for, one per token
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // alternatives, best first
  std::string logits_sha256;  // when asked for: over all raw logits rows of the generated tokens, little-endian f32
};

struct RequestResult {
  RequestId request = 0;
  std::vector<SampleResult> samples;           // [n]
  std::vector<PromptLogprob> prompt_logprobs;  // when asked for, one per prompt token; fewer after an early end
  std::optional<Error> error;                  // refused or failed; samples may be partial
  uint64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  MissReason miss_reason = MissReason::none;
  uint32_t preemptions = 0, resumes = 0;
  uint64_t resume_cached_tokens = 0;  // found in the cache when it resumed, all times together
  uint64_t recomputed_tokens = 0;     // computed again after preemptions
  uint32_t batch_peers_max = 0;       // most sequences that shared a step with this request, itself included
  double queue_ms = 0, ttft_ms = 0, tpot_ms = 0;  // time to first token from submit; mean time per later token
  // Times of the engine's clock; 0: it never came to that. A token's time is the end of its step.
  uint64_t arrival_us = 0, first_scheduled_us = 0, first_token_us = 0, last_token_us = 0;
};

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  uint32_t sample_index = 0;  // of the first sample: child i of n draws as a single run with sample_index i
  std::string cache_salt;     // see OpenOptions; at most 1024 bytes
  int32_t priority = 0;       // lower runs earlier (vLLM's sense); only with SchedulingPolicy::priority
  bool hash_logits = false;   // fill SampleResult::logits_sha256
  // Score the prompt, and report so many alternatives per token (at most 1024; 4,194,304 over the whole prompt). Such a
  // request computes its whole prompt (others may reuse what it leaves in the cache). With it max_tokens may be 0:
  // nothing is generated then and the samples end with `length`.
  std::optional<uint32_t> prompt_logprobs = {};
  // Neither may throw: an exception out of one is taken for a bug of the step, or leaves step() half done.
  std::function<void(const TokenEvent&)> on_token;      // on the owner's thread; may be empty; not called for beams
  std::function<void(const RequestResult&)> on_finish;  // exactly once per accepted request, after its last event
};

struct EngineStats {
  KvCacheStats kv;
  uint32_t running = 0, waiting = 0;
  uint64_t queued_tokens = 0;  // prompt tokens of requests that were never scheduled yet
  uint64_t steps = 0, preemptions = 0, recomputed_tokens = 0;
  uint64_t cut_passes = 0;        // of prompts, computed a few layers at a time in several steps beside decodes
  uint64_t preempted_tokens = 0;  // computed tokens that preempted samples held
  // Resumed samples: all they had to compute again was less than a block; some was found; nothing was.
  uint64_t resumes_from_cache = 0, resumes_in_part = 0, resumes_recomputed = 0;
  uint64_t resume_cached_tokens = 0;
  uint64_t prefix_query_tokens = 0, prefix_hit_tokens = 0;  // counted once per request, never when it resumes
  bool kv_balanced = true;           // free + active + cached + remainders == arena; false is a bug of ours
  uint64_t saturated_kv_values = 0;  // K or V beyond the range of a half float, stored as its largest value
  uint64_t internal_errors = 0;      // steps that failed by a bug of ours; see health()
  uint64_t prompt_tokens = 0, computed_prompt_tokens = 0, generated_tokens = 0;
  double waste_mean = 0, waste_at_peak = 0;  // share of active KV bytes that hold no live token: mean over steps; at
                                             // the step with the most active bytes
  uint64_t peak_active_bytes = 0;
};

// Bytes that are taken for one purpose: now, the most there ever were, and the step in which they came to that.
struct MemoryUse {
  std::string_view tag;  // "weights", "kv_arena", ...
  size_t bytes = 0, peak_bytes = 0;
  uint64_t peak_step = 0;  // 0: while loading
};

// A request that was scheduled for the first time.
struct AdmittedRequest {
  RequestId request = 0;
  uint64_t query_tokens = 0, hit_tokens = 0;  // of its prompt: looked up in the prefix cache, found there
  MissReason miss_reason = MissReason::none;
};
// A sample that gave its blocks back, or one that resumed.
struct PreemptedSample {
  RequestId request = 0;
  uint32_t sample = 0;
  uint64_t computed_tokens = 0;  // that it held, or had held
};
struct ResumedSample {
  RequestId request = 0;
  uint32_t sample = 0;
  uint64_t computed_tokens = 0, cached_tokens = 0;  // that it had held; of these found in the cache again
};

// One call of step(), for metrics. Spans are valid during the call.
struct StepReport {
  uint64_t step = 0;                  // steps computed so far
  uint64_t start_us = 0, end_us = 0;  // of the engine's clock: the forward pass, logits and sampling; equal: nothing
                                      // was computed
  uint32_t sequences = 0;             // that computed something
  uint64_t prompt_tokens = 0;         // computed, those of resumed requests included
  uint64_t generated_tokens = 0;
  bool decodes_only = false;
  bool cache_rebuilt = false;         // a bug cost the cache: what it knew is gone, cache() is another one
  uint32_t running = 0, waiting = 0;  // afterwards
  std::span<const AdmittedRequest> admitted;
  std::span<const PreemptedSample> preempted;
  std::span<const ResumedSample> resumed;
  KvCacheStats kv;
};

// How messages' contents reach a chat template. automatic: as the template is found to want them.
enum class ContentFormat : uint8_t { automatic, string, parts };

// What a chat template is given. JSON texts; empty: absent.
struct ChatContext {
  std::string_view messages = {};   // array of {"role", "content", ...}
  std::string_view tools = {};      // array
  std::string_view documents = {};  // array
  std::string_view kwargs = {};     // object: further variables
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the text ends with the last message's content; not with the one above
  ContentFormat content_format = ContentFormat::automatic;
  std::string_view chat_template = {};  // used instead of the model's
};

// What the model and machine came to: for people and for `inspect`.
struct EngineInfo {
  std::string model_path, architecture, model_name, numerics, simd_target;
  std::string model_fingerprint;  // 64 hex digits: equal for files with the same weights, tokenizer and template
  uint32_t vocabulary = 0, max_model_len = 0, context_length = 0;
  std::string max_model_len_reason;  // empty unless memory makes max_model_len less than the model's context
  int threads = 0;
  size_t weight_bytes = 0;  // in memory
  size_t pass_bytes = 0;    // weights read per step
  size_t kv_arena_bytes = 0, kv_bytes_per_token = 0;
  std::string kv_dtype;  // "float16", or "float16/bfloat16" when K and V differ
};

struct EngineParts;  // engine/engine_parts.h

class Engine {
 public:
  // Plans memory first and refuses with the numbers when it cannot fit; then loads.
  static Result<std::unique_ptr<Engine>> load(const std::string& gguf_path, const EngineOptions& options);
  // An engine over parts made elsewhere (tests, other loaders).
  static Result<std::unique_ptr<Engine>> assemble(EngineParts parts);
  // Requests that are not finished end as cancelled.
  ~Engine();

  const EngineInfo& info() const;

  // Checks the request (every number that makes no sense is an error naming the field; what can never fit is refused
  // with the numbers) and queues it. Any thread.
  Result<RequestId> submit(Request request);
  // Ends a request in whatever state it is; its on_finish sees `cancelled`. Unknown or finished ids are ignored. Any
  // thread.
  void cancel(RequestId id);
  // One step: admit, compute, sample, report. False when there is nothing to do.
  bool step();
  bool idle() const;
  // Fails when internal errors came three times within a minute: nothing is accepted or computed any more. Any thread.
  Status health() const;
  // Submits, steps until that request is finished, returns its result (or its refusal).
  Result<RequestResult> generate(Request request);

  // Raw log-likelihoods: for each position of `ids`, visits row [vocabulary] of logits (prediction of the next token).
  // `visit` must not throw.
  Status score(std::span<const TokenId> ids,
               const std::function<void(size_t position, std::span<const float> logits)>& visit);

  // The textbook loop's step: computes `tokens` after what `sequence` (opened in cache()) holds and returns the logits
  // that follow the last one, [vocabulary]. First the prompt (from sequence.length() on), then one token at a time.
  // After an error nothing of `tokens` is kept: go on from sequence.length(), which is what it was or, where a block
  // edge or a window forbids that, less (see KvCache::trim). After ErrorCode::internal the cache was made anew: open
  // again.
  Result<std::vector<float>> forward(KvSequence& sequence, std::span<const TokenId> tokens);
  // The same for whoever scores texts: visits the logits that follow each of the last `rows` tokens (1 to
  // tokens.size()), in order; `index` counts from the first of these. `visit` must not throw.
  Status forward(KvSequence& sequence, std::span<const TokenId> tokens, size_t rows,
                 const std::function<void(size_t index, std::span<const float> logits)>& visit);
  // Ids that end generation; empty without a tokenizer.
  std::vector<TokenId> stop_ids() const;

  // Text. encode: special tokens parsed unless `plain`; BOS in front when the model's rules want one and `bos` is set.
  Result<std::vector<TokenId>> encode(std::string_view text, bool plain = false, bool bos = true) const;
  std::string decode(std::span<const TokenId> ids, bool special = false) const;
  // Bytes of one token; empty for control tokens unless `special`, and for ids outside the vocabulary.
  std::string piece(TokenId id, bool special = false) const;
  // The text begins with the BOS token's spelling, so that encode adds none.
  bool begins_with_bos(std::string_view text) const;
  // `messages_json`: an array of {"role","content",...}. Errors: no template in the model, the template's own
  // complaint. Any thread.
  Result<std::string> render_chat(std::string_view messages_json, bool add_generation_prompt = true) const;
  // Beside that: contents become text or parts as the template wants them (text parts joined by newlines, null to ""),
  // and arguments of tool calls that are JSON texts become objects. A template given by text is parsed once.
  Result<std::string> render_chat(const ChatContext& context) const;
  bool has_chat_template() const;
  std::string_view chat_template() const;  // the model's own; empty: none
  // Whether a template, or the model's own, can be parsed; the error names the line.
  Status check_chat_template(std::string_view chat_template = {}) const;

  EngineStats stats() const;
  // Bytes under each tag of the memory ledger; empty when the engine has none. Any thread.
  std::vector<MemoryUse> memory() const;
  // What stats() said when the last step was done, with those that were submitted since among the waiting. Any thread.
  EngineStats stats_snapshot() const;
  // From now on called at the end of every step(), after what ended was reported. Must not throw.
  void observe(std::function<void(const StepReport&)> observer);
  // Forgets every cached block; false when some are in use (they stay). Not during a step.
  bool reset_prefix_cache();
  // Not after the cache could not be made again, which health() tells (CHECK); a step that fails replaces it.
  // Between steps a prompt that is computed over several of them may hold its reservation, and so some of the
  // max_step_tokens; forward() and score() make it begin again.
  KvCache& cache();

 private:
  friend struct EngineParts;
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
