// Who may start: the order of the queues, admission, waiting for a prefix that is being computed.
#include <algorithm>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace kvarto {
namespace {

constexpr uint32_t kMostPrefixWaitSteps = 256;  // without one more block of it
constexpr uint32_t kStalledSteps = 8;           // a prefill that did not advance for so long is not waited for

bool in_queue_order(const Sample* a, const Sample* b) { return queue_key(*a) < queue_key(*b); }

void insert_sorted(std::vector<Sample*>& queue, Sample& sample) {
  queue.insert(std::upper_bound(queue.begin(), queue.end(), &sample, in_queue_order), &sample);
}

OpenOptions open_options(const Sample& sample) {
  OpenOptions options;
  const RequestState& request = *sample.request;
  options.cache_salt = request.request.cache_salt;
  if (request.scoring()) {  // rows that are still wanted must be computed
    options.read_cache = request.scored > 0;
    options.max_cached_tokens = request.scored;
  }
  return options;
}

}  // namespace

// What a sample's place in the queues goes by at `now`.
int64_t Engine::Impl::level_of(const Sample& sample, uint64_t now) const {
  if (parts.options.scheduling_policy == SchedulingPolicy::fcfs) return 0;
  const int64_t priority = sample.request->request.priority;
  const uint64_t aging_us = uint64_t{parts.options.priority_aging_ms} * 1000;
  if (aging_us == 0) return priority;
  const uint64_t waited_us = sample.waited_us + (sample.state == SampleState::waiting ? now - sample.enqueued_us : 0);
  return priority - static_cast<int64_t>(waited_us / aging_us);
}

// Those that wait get more important with time.
void Engine::Impl::refresh_levels() {
  if (parts.options.scheduling_policy == SchedulingPolicy::fcfs) return;
  const uint64_t now = parts.clock->now_us();
  for (Sample* sample : waiting) sample->level = level_of(*sample, now);
  if (!std::ranges::is_sorted(waiting, in_queue_order)) std::ranges::sort(waiting, in_queue_order);
}

// A preempted sample is older than everything that never ran, so it comes to the front of its level by itself.
void Engine::Impl::enqueue(Sample& sample) {
  sample.state = SampleState::waiting;
  sample.enqueued_us = parts.clock->now_us();
  sample.level = level_of(sample, sample.enqueued_us);
  insert_sorted(waiting, sample);
}

void Engine::Impl::start_running(Sample& sample) {
  sample.state = SampleState::running;
  sample.idle_steps = 0;
  insert_sorted(running, sample);
}

uint32_t Engine::Impl::slots_used() const {
  uint32_t used = 0;
  for (const Sample* sample : running) used += 1 + sample->request->unborn;
  return used;
}

// What a sample that holds `held_tokens` will still take for the tokens known now and its next block, tails of its
// unborn siblings included. Windows are as wide as its largest chunk to come makes them.
size_t Engine::Impl::wanted_bytes(const Sample& sample, uint64_t held_tokens) const {
  const auto chunk = static_cast<uint32_t>(
      std::min<uint64_t>(parts.options.max_num_batched_tokens, sample.tokens.size() - held_tokens));
  const size_t whole = parts.layout.bytes_for_sequence(sample.tokens.size() + block_tokens(), std::max(chunk, 1u));
  const size_t held = parts.layout.bytes_for_sequence(held_tokens, 1);
  return (whole > held ? whole - held : 0) + sample.request->unborn * parts.layout.bytes_for_sequence(1, 1);
}

size_t Engine::Impl::promised_bytes() const {
  size_t bytes = 0;
  for (const Sample* sample : running)
    bytes += wanted_bytes(*sample, sample->sequence.length() + sample->sequence.reserved());
  return bytes;
}

// Looks first and opens only what is admitted: one that has to wait changes neither recency nor counters.
bool Engine::Impl::try_admit(Sample& sample) {
  RequestState& request = *sample.request;
  const uint32_t used = slots_used();
  AdmissionLoad load{.promised_bytes = promised_bytes(),
                     .others_running = !running.empty(),
                     .slots_wanted = 1 + request.unborn,
                     .slots_free = parts.options.max_num_seqs - std::min(parts.options.max_num_seqs, used)};
  if (load.slots_wanted > load.slots_free) return false;
  const OpenOptions options = open_options(sample);
  const PrefixMatch match = cache->match(sample.tokens, options);
  const KvCacheStats stats = cache->stats();
  load.available_bytes = stats.free_bytes + stats.cached_bytes - match.idle_bytes;  // those it would use itself
  load.needed_bytes = wanted_bytes(sample, match.tokens);
  load.kept_bytes = static_cast<size_t>(parts.options.watermark * static_cast<double>(stats.arena_bytes));
  if (!Scheduler::may_admit(load)) return false;
  sample.sequence = cache->open(sample.tokens, options).sequence;
  note_admission(sample, match);
  start_running(sample);
  return true;
}

void Engine::Impl::note_admission(Sample& sample, const PrefixMatch& match) {
  RequestState& request = *sample.request;
  const uint64_t now = parts.clock->now_us();
  sample.waited_us += now - sample.enqueued_us;
  if (!request.admitted) {
    request.admitted = true;
    request.admitted_us = now;
    request.result.cached_tokens = match.tokens;
    request.result.miss_reason = match.reason;
    queued_tokens -= request.prompt_tokens();
    totals.prefix_query_tokens += request.prompt_tokens();
    totals.prefix_hit_tokens += match.tokens;
    admitted.push_back({request.id, request.prompt_tokens(), match.tokens, match.reason});
  }
  if (sample.held_before) note_resume(sample, match.tokens);
}

void Engine::Impl::note_resume(Sample& sample, uint64_t found) {
  RequestState& request = *sample.request;
  const uint64_t held = *std::exchange(sample.held_before, std::nullopt);
  const uint64_t cached = std::min(found, held);
  uint64_t& kind = held - cached < block_tokens() ? totals.resumes_from_cache
                   : cached > 0                   ? totals.resumes_in_part
                                                  : totals.resumes_recomputed;
  ++kind;
  totals.resume_cached_tokens += cached;
  ++request.result.resumes;
  request.result.resume_cached_tokens += cached;
  resumed.push_back({request.id, sample.index, held, cached});
  log(LogLevel::info, "request " + std::to_string(request.id) + " resumes: of " + std::to_string(held) +
                          " tokens that it had computed when preempted, " + std::to_string(cached) +
                          " are in the cache and " + std::to_string(held - cached) + " are computed again");
}

// In queue order; a request that waits for a prefix lets others pass, one that does not fit does not.
void Engine::Impl::admit() {
  if (waiting.empty()) return;
  refresh_levels();
  find_computing_prefixes();
  for (size_t i = 0; i < waiting.size();) {
    Sample& sample = *waiting[i];
    if (waits_for_prefix(sample)) {
      ++i;
    } else if (try_admit(sample)) {
      add_computing_prefixes(sample);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      // Beams that wait for a sibling compute nothing; when nobody else does, they must make room.
      const bool work = std::ranges::any_of(running, [](const Sample* s) { return s->state == SampleState::running; });
      Sample* parked = work ? nullptr : pick_victim(nullptr);
      if (parked == nullptr) return;
      preempt(*parked);
    }
  }
}

// --- two cold requests with the same prefix: the second waits for the first's blocks

void Engine::Impl::find_computing_prefixes() {
  computing.clear();
  for (const Sample* sample : running) add_computing_prefixes(*sample);
}

void Engine::Impl::add_computing_prefixes(const Sample& sample) {
  const std::vector<BlockHash>& hashes = sample.request->prompt_hashes;
  for (size_t block = sample.sequence.length() / block_tokens(); block < hashes.size(); ++block) {
    computing[event_id(hashes[block])].emplace_back(hashes[block], &sample);
  }
}

bool Engine::Impl::waits_for_prefix(Sample& sample) {
  const std::vector<BlockHash>& hashes = sample.request->prompt_hashes;
  if (sample.request->scoring()) return false;  // it reads nothing
  if (hashes.empty() || computing.empty() || sample.prefix_wait_steps >= kMostPrefixWaitSteps) return false;
  const uint64_t block = cache->match(sample.tokens, open_options(sample)).tokens / block_tokens();
  // The last token is always computed, so a block that holds it would not be used.
  if (block >= hashes.size() || (block + 1) * block_tokens() >= sample.tokens.size()) return false;
  const auto found = computing.find(event_id(hashes[block]));
  if (found == computing.end()) return false;
  for (const auto& [hash, owner] : found->second) {
    if (hash == hashes[block] && owner->idle_steps < kStalledSteps) {
      sample.prefix_wait_steps = block > sample.prefix_wait_block ? 0 : sample.prefix_wait_steps + 1;
      sample.prefix_wait_block = block;
      return true;
    }
  }
  return false;
}

}  // namespace kvarto
