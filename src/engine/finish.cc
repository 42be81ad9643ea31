// How samples and requests end, what their callers get, and what a bug of ours costs.
#include <algorithm>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace kvarto {
namespace {

constexpr size_t kMostFailures = 3;
constexpr uint64_t kFailureSpanUs = 60'000'000;

double ms_between(uint64_t from_us, uint64_t to_us) {
  return to_us > from_us ? static_cast<double>(to_us - from_us) / 1000.0 : 0.0;
}

}  // namespace

void Engine::Impl::end_sample(Sample& sample, FinishReason reason) {
  if (sample.state == SampleState::finished) return;
  if (sample.output.finish_reason() == FinishReason::none && !sample.request->is_beam()) {
    events.push_back({sample.request, sample.index, &sample, std::nullopt, sample.output.end(reason), reason});
  }
  leave_pass(sample);
  if (sample.sequence && sample.sequence.reserved() > 0) cache->cancel(sample.sequence);
  sample.sequence = KvSequence();
  sample.state = SampleState::finished;
  const RequestState& request = *sample.request;
  const bool all =
      std::ranges::all_of(request.samples, [](const auto& s) { return s->state == SampleState::finished; });
  if (all && request.unborn == 0) mark_ended(*sample.request);
}

void Engine::Impl::end_request(RequestState& request, FinishReason reason, std::optional<Error> error) {
  if (request.ended) return;
  request.unborn = 0;
  request.result.error = std::move(error);
  for (const auto& sample : request.samples) end_sample(*sample, reason);
  for (auto i = static_cast<uint32_t>(request.samples.size()); i < request.params().n && !request.is_beam(); ++i) {
    events.push_back({&request, i, nullptr, std::nullopt, "", reason});
  }
  mark_ended(request);
}

void Engine::Impl::mark_ended(RequestState& request) {
  if (request.ended) return;
  request.ended = true;
  if (!request.admitted) queued_tokens -= request.prompt_tokens();
  ended.push_back(&request);
}

void Engine::Impl::fill_result(RequestState& request) {
  RequestResult& result = request.result;
  if (!request.is_beam()) {
    uint64_t longest = 0;
    for (const auto& sample : request.samples) {
      longest = std::max<uint64_t>(longest, sample->generated().size());
      result.samples.push_back(sample->output.take(sample->generated()));
    }
    if (longest > 1) {
      result.tpot_ms = ms_between(request.first_token_us, request.last_token_us) / static_cast<double>(longest - 1);
    }
  }
  // Samples that never came to be.
  const FinishReason fate = result.error ? FinishReason::error : FinishReason::cancelled;
  while (result.samples.size() < request.params().n) {
    SampleResult missing;
    missing.finish = fate;
    result.samples.push_back(std::move(missing));
  }
  result.arrival_us = request.submitted_us;
  result.first_scheduled_us = request.admitted_us;
  result.first_token_us = request.first_token_us;
  result.last_token_us = request.last_token_us;
  if (request.admitted) result.queue_ms = ms_between(request.submitted_us, request.admitted_us);
  if (request.first_token_us > 0) result.ttft_ms = ms_between(request.submitted_us, request.first_token_us);
}

// Clears the queues of what has finished, then reports: a callback may submit and cancel.
void Engine::Impl::sweep() {
  report_tokens();
  const auto finished = [](const Sample* sample) { return sample->state == SampleState::finished; };
  std::erase_if(running, finished);
  std::erase_if(waiting, finished);
  std::vector<std::unique_ptr<RequestState>> done;
  for (RequestState* request : ended) {
    fill_result(*request);
    const auto found = requests.find(request->id);
    done.push_back(std::move(found->second));
    requests.erase(found);
  }
  ended.clear();
  for (const auto& request : done) {
    if (request->request.on_finish) request->request.on_finish(request->result);
  }
}

// A step failed by a bug of ours. What it touched cannot be trusted: running requests end, the cache is made anew, and
// whoever waits goes on. The cache goes first: sequences of a cache that is gone give nothing back to its books.
// Failing again and again helps nobody, so the third time within a minute is the last.
void Engine::Impl::poison(const std::string& what) {
  log(LogLevel::error, "a step failed: " + what);
  ++totals.internal_errors;
  const Error error{ErrorCode::internal, "a step failed by a bug in this program: " + what};
  step.entries.clear();
  pass.clear();
  beams_ready.clear();
  std::vector<RequestState*> touched;
  for (const auto& [id, request] : requests) {
    const bool runs = std::ranges::any_of(request->samples, [](const auto& sample) {
      return static_cast<bool>(sample->sequence) || sample->state == SampleState::parked;
    });
    if (runs) touched.push_back(request.get());
  }
  cache.reset();
  for (RequestState* request : touched) {
    for (const auto& sample : request->samples) sample->sequence = KvSequence();
    end_request(*request, FinishReason::error, error);
  }
  const Status rebuilt = make_cache();
  cache_rebuilt = true;
  const uint64_t now = parts.clock->now_us();
  failures_us.push_back(now);
  if (failures_us.size() > kMostFailures) failures_us.pop_front();
  const bool often = failures_us.size() == kMostFailures && now - failures_us.front() <= kFailureSpanUs;
  if (rebuilt && !often) return;
  const Error closing =
      rebuilt ? Error{ErrorCode::internal, "the engine stopped: 3 steps failed within a minute, the last with: " + what}
              : Error{ErrorCode::internal,  // whatever it was: no request is to blame
                      "the engine stopped: its KV cache could not be made again: " + rebuilt.error().message};
  log(LogLevel::error, closing.message);
  inbox.close(closing);
  receive();
  for (const auto& [id, request] : requests) end_request(*request, FinishReason::error, closing);
}

}  // namespace kvarto
