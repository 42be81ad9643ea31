// Engine::Impl: the engine's state and the parts of a step. Each file of this folder named after a part implements it:
// admission.cc (who may start), room.cc (who gives way), compute.cc (the batch, the forward pass, what follows from
// logits), cut_pass.cc (prompts that are computed over several steps), direct.cc (score, forward), beams.cc, finish.cc
// (how requests end), report.cc (what callers and metrics get to know). Owner's thread, but for `inbox`, `limits`,
// `chat`, the snapshot and the immutable parts.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/chat.h"
#include "engine/engine_parts.h"
#include "engine/inbox.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/validate.h"

namespace kvarto {

// Most rows of logits that exist at once; they are reduced before the next ones are made.
inline constexpr uint32_t kLogitRows = 64;
// Most rows of a step that logits are made of: one of every sequence, and those of prompts that are scored.
inline size_t most_logit_rows(const EngineOptions& options) { return size_t{kLogitRows} + options.max_num_seqs; }
// Most rows of a step beside a cut pass: one of every sequence.
inline uint32_t most_decode_rows(const EngineOptions& options) {
  return std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

struct Engine::Impl {
  explicit Impl(EngineParts engine_parts);
  ~Impl();
  Status make_cache();
  Status make_buffers();
  uint32_t block_tokens() const { return parts.layout.block_tokens(); }
  uint32_t vocabulary() const { return parts.model->config().vocabulary; }

  // --- a step, in order
  void receive();
  void admit();
  void plan_step();
  void compute();
  void commit();
  void choose();
  void sweep();
  void poison(const std::string& what);
  bool busy() const;
  void publish(bool computed);

  // --- admission.cc
  bool try_admit(Sample& sample);
  void note_admission(Sample& sample, const PrefixMatch& match);
  void note_resume(Sample& sample, uint64_t found);
  int64_t level_of(const Sample& sample, uint64_t now) const;
  void refresh_levels();
  size_t wanted_bytes(const Sample& sample, uint64_t held_tokens) const;
  size_t promised_bytes() const;
  uint32_t slots_used() const;
  void enqueue(Sample& sample);
  void start_running(Sample& sample);
  void find_computing_prefixes();
  void add_computing_prefixes(const Sample& sample);
  bool waits_for_prefix(Sample& sample);
  uint64_t most_in_a_step(const Sample& sample, uint32_t scoring) const;

  // --- room.cc
  bool reserve(Sample& sample, uint32_t& count);
  Sample* pick_victim(const Sample* needy) const;
  void preempt(Sample& sample);
  // --- compute.cc
  struct Rows;
  void fill(Rows& rows);
  void observe_step();
  void count_commit(Sample& sample, uint64_t first, uint32_t count);
  void score_row(Sample& sample, uint64_t position, std::span<const float> row);
  void take_row(Sample& sample, std::span<const float> row);
  void end_scored(RequestState& request);
  void bear_children(Sample& parent);
  void choose_token(Sample& sample, std::span<const float> row);

  // --- cut_pass.cc
  void begin_pass();
  void advance_pass();
  void leave_pass(const Sample& sample);
  void abandon_pass();

  // --- direct.cc
  Status check_ids(std::span<const TokenId> ids, uint64_t length) const;
  Status compute_ids(KvSequence& sequence, std::span<const TokenId> ids, std::span<const uint32_t> rows_wanted);
  Status score(std::span<const TokenId> ids, const std::function<void(size_t, std::span<const float>)>& visit);
  Result<std::vector<float>> forward(KvSequence& sequence, std::span<const TokenId> ids);
  Status forward(KvSequence& sequence, std::span<const TokenId> ids, size_t rows,
                 const std::function<void(size_t, std::span<const float>)>& visit);

  // --- beams.cc
  void take_beam_row(Sample& sample, std::span<const float> row);
  void expand_beams(RequestState& request);
  void replace_beams(RequestState& request, std::span<const BeamStep> live);
  void finish_beams(RequestState& request);

  // --- finish.cc
  void end_sample(Sample& sample, FinishReason reason);
  void end_request(RequestState& request, FinishReason reason, std::optional<Error> error);
  void mark_ended(RequestState& request);
  void fill_result(RequestState& request);

  // --- report.cc
  void report_tokens();
  EngineStats stats() const;

  EngineParts parts;
  Scheduler scheduler;
  Sampler sampler;
  RequestLimits limits;
  Inbox inbox;
  std::unique_ptr<KvCache> cache;  // before the requests: their sequences go first
  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests;
  std::vector<Sample*> waiting, running;   // in queue_key order
  std::vector<RequestState*> ended;        // to be reported by sweep()
  std::vector<RequestState*> beams_ready;  // to be expanded after this step's rows
  uint64_t queued_tokens = 0;              // prompts of requests that were never admitted

  // The step being built.
  struct Entry {
    Sample* sample;
    uint64_t first;
    uint32_t count;
  };
  StepPlan plan;
  std::vector<SequenceLoad> loads;
  std::vector<Sample*> planned;
  struct LogitRow {
    Sample* sample;
    uint64_t position;
    bool scored;  // for prompt_logprobs; otherwise something comes after it
  };
  // Rows that go through the model together, and whose they are.
  struct Rows {
    std::vector<Entry> entries;
    std::vector<TokenId> tokens;
    std::vector<BatchSequence> sequences;  // [entries]
    std::vector<uint32_t> logit_rows;      // of `tokens`
    std::vector<LogitRow> logit_from;      // [logit_rows]
    uint64_t context = 0;                  // keys attended
    StepWork work() const { return {tokens.size(), context, logit_rows.size()}; }
  };
  Rows step;
  // Prompts whose rows go through a few layers in each of several steps. They hold their reservations until the last
  // layer is done; then they are part of that step.
  struct CutPass {
    Rows rows;
    uint32_t layers_done = 0, steps = 0;
    double us = 0.0;
    bool whole = true;  // nobody left it
    bool under_way() const { return !rows.entries.empty(); }
    void clear() {
      rows.entries.clear();
      layers_done = steps = 0;
      us = 0.0;
      whole = true;
    }
  };
  CutPass pass;
  Slab hidden, logits;
  uint64_t step_start_us = 0, step_end_us = 0;
  bool pass_advanced = false;   // by this step
  bool pass_abandoned = false;  // since the last one was begun
  std::unordered_map<uint64_t, std::vector<std::pair<BlockHash, const Sample*>>> computing;  // by event_id
  std::vector<std::unique_ptr<RequestState>> arrived;
  std::vector<RequestId> cancelled;

  // What the step is reported by. A token and where it came from, or the end of a sample from outside.
  struct PendingEvent {
    RequestState* request;
    uint32_t index;  // of the sample
    Sample* sample;  // null: it never came to be
    std::optional<TokenId> token;
    std::string text;
    FinishReason finish;
  };
  std::vector<PendingEvent> events;
  std::vector<AdmittedRequest> admitted;
  std::vector<PreemptedSample> preempted;
  std::vector<ResumedSample> resumed;
  bool cache_rebuilt = false;
  uint64_t reported_prompt_tokens = 0, reported_generated_tokens = 0;  // of totals, by the last report

  EngineStats totals;
  double waste_sum = 0.0;
  uint64_t waste_steps = 0;
  std::deque<uint64_t> failures_us;

  mutable std::mutex snapshot_mutex;
  EngineStats snapshot;

  ChatRenderer chat;
};

}  // namespace kvarto
