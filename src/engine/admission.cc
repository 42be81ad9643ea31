// Who runs and who gives way: admission, waiting for a prefix that is being computed, reservation, preemption.
#include <algorithm>

#include "engine/engine_impl.h"

namespace kvarto {
namespace {

constexpr uint32_t kMostPrefixWaitSteps = 64;
constexpr uint32_t kStalledSteps = 8;  // a prefill that did not advance for so long is not waited for

bool in_queue_order(const Sample* a, const Sample* b) { return queue_key(*a) < queue_key(*b); }

void insert_sorted(std::vector<Sample*>& queue, Sample& sample) {
  queue.insert(std::upper_bound(queue.begin(), queue.end(), &sample, in_queue_order), &sample);
}

OpenOptions open_options(const Sample& sample) {
  OpenOptions options;
  options.cache_salt = sample.request->request.cache_salt;
  return options;
}

}  // namespace

// A preempted sample is older than everything that never ran, so it comes to the front of its priority by itself.
void Engine::Impl::enqueue(Sample& sample) {
  sample.state = SampleState::waiting;
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
  for (const Sample* sample : running) bytes += wanted_bytes(*sample, sample->sequence.length());
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
  if (!Scheduler::may_admit(load)) return false;
  sample.sequence = cache->open(sample.tokens, options).sequence;
  if (!request.admitted) {
    request.admitted = true;
    request.admitted_us = parts.clock->now_us();
    request.result.cached_tokens = match.tokens;
    request.result.miss_reason = match.reason;
    totals.prefix_query_tokens += request.prompt_tokens();
    totals.prefix_hit_tokens += match.tokens;
  }
  start_running(sample);
  return true;
}

// In queue order; a request that waits for a prefix lets others pass, one that does not fit does not.
void Engine::Impl::admit() {
  if (waiting.empty()) return;
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
  if (hashes.empty() || computing.empty() || sample.prefix_wait_steps >= kMostPrefixWaitSteps) return false;
  const uint64_t block = cache->match(sample.tokens, open_options(sample)).tokens / block_tokens();
  // The last token is always computed, so a block that holds it would not be used.
  if (block >= hashes.size() || (block + 1) * block_tokens() >= sample.tokens.size()) return false;
  const auto found = computing.find(event_id(hashes[block]));
  if (found == computing.end()) return false;
  for (const auto& [hash, owner] : found->second) {
    if (hash == hashes[block] && owner->idle_steps < kStalledSteps) {
      ++sample.prefix_wait_steps;
      return true;
    }
  }
  return false;
}

// --- blocks for this step

void Engine::Impl::plan_step() {
  loads.clear();
  planned.clear();
  entries.clear();
  for (Sample* sample : running) {
    if (sample->state != SampleState::running) continue;
    planned.push_back(sample);
    loads.push_back({sample->sequence.length(), sample->remaining(), sample->idle_steps});
    ++sample->idle_steps;
  }
  scheduler.plan(loads, *parts.cost, plan);
  for (const PlannedChunk& chunk : plan.chunks) {
    Sample& sample = *planned[chunk.sequence];
    uint32_t count = chunk.count;
    if (sample.state != SampleState::running || !reserve(sample, count)) continue;  // it gave way
    entries.push_back({&sample, chunk.first, count});
  }
}

// Takes the blocks for `count` tokens, preempting until they are there; false when the sample itself had to go. One
// that ends takes its request's other samples along, also those that this step was to compute.
bool Engine::Impl::reserve(Sample& sample, uint32_t& count) {
  const auto fail_request = [&](const Error& error) {
    end_request(*sample.request, FinishReason::error, error);
    std::erase_if(entries, [&](const Entry& entry) { return entry.sample->request == sample.request; });
    return false;
  };
  while (true) {
    const Status reserved = cache->reserve(sample.sequence, count);
    if (reserved) return true;
    if (reserved.error().code != ErrorCode::out_of_memory) return fail_request(reserved.error());
    const bool alone = std::ranges::none_of(running, [&](const Sample* other) {
      return other != &sample && other->sequence.length() + other->sequence.reserved() > 0;
    });
    if (alone && count == 1) return fail_request(reserved.error());
    if (alone) {
      count = (count + 1) / 2;
      continue;
    }
    Sample* victim = pick_victim(&sample);
    preempt(*victim);
    if (victim == &sample) return false;
  }
}

// Among those that hold blocks, and the one that needs some; without one in need, among parked beams only.
Sample* Engine::Impl::pick_victim(const Sample* needy) const {
  std::vector<VictimLoad> candidates;
  std::vector<Sample*> samples;
  for (Sample* sample : running) {
    if (needy == nullptr && sample->state != SampleState::parked) continue;
    const bool holds_blocks = sample->sequence.length() + sample->sequence.reserved() > 0;
    if (!holds_blocks && sample != needy) continue;
    const uint64_t computed = sample->sequence.length();
    const uint64_t kept = parts.options.enable_prefix_caching ? computed / block_tokens() * block_tokens() : 0;
    candidates.push_back(
        {sample->request->request.priority, sample->preemptions, computed - kept, sample->request->id});
    samples.push_back(sample);
  }
  const std::optional<size_t> chosen = Scheduler::victim(candidates);
  return chosen ? samples[*chosen] : nullptr;
}

// Gives its blocks back. A parked beam has what it needs until its siblings are done; any other waits to resume.
void Engine::Impl::preempt(Sample& sample) {
  ++sample.preemptions;
  ++sample.request->result.preemptions;
  ++totals.preemptions;
  sample.computed_before = std::max(sample.computed_before, sample.sequence.length());
  if (sample.sequence.reserved() > 0) cache->cancel(sample.sequence);
  sample.sequence = KvSequence();
  std::erase(running, &sample);
  std::erase_if(entries, [&](const Entry& entry) { return entry.sample == &sample; });
  if (sample.state != SampleState::parked) enqueue(sample);
}

}  // namespace kvarto
