#include "server/recent_requests.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvarto {
namespace {

double ms_between(uint64_t from_us, uint64_t to_us) {
  return to_us > from_us ? static_cast<double>(to_us - from_us) / 1e3 : 0.0;
}

RowState end_of(const RequestResult& result) {
  const auto any = [&](FinishReason reason) {
    return std::ranges::find(result.samples, reason, &SampleResult::finish) != result.samples.end();
  };
  if (result.error || any(FinishReason::error)) return RowState::failed;
  if (any(FinishReason::cancelled)) return RowState::aborted;
  return any(FinishReason::length) ? RowState::length : RowState::stop;
}

}  // namespace

std::string_view row_state_name(RowState state) {
  constexpr std::string_view kNames[] = {"waiting", "prefill", "decode", "stop", "length", "aborted", "failed"};
  return kNames[static_cast<size_t>(state)];
}

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double percent) {
    const double rank = std::ceil(percent * static_cast<double>(values.size()) / 100);
    return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  };
  return {values.size(), at(50), at(95), at(99)};
}

std::shared_ptr<LiveRequest> RecentRequests::begin(std::string id, uint64_t prompt_tokens, uint32_t samples,
                                                   uint64_t arrival_us) {
  const std::scoped_lock lock(mutex_);
  if (live_.size() >= max_live_) return nullptr;
  live_.push_front(std::make_shared<LiveRequest>(std::move(id), prompt_tokens, samples, arrival_us));
  live_.front()->place_ = live_.begin();
  return live_.front();
}

void RecentRequests::submitted(const std::shared_ptr<LiveRequest>& live, RequestId engine_id) {
  const std::scoped_lock lock(mutex_);
  if (live == nullptr || !live->listed_) return;  // it may have ended already
  live->engine_id_ = engine_id;
  by_engine_id_.emplace(engine_id, live.get());
}

void RecentRequests::remove(LiveRequest& live) {
  if (!std::exchange(live.listed_, false)) return;
  by_engine_id_.erase(live.engine_id_);
  live_.erase(live.place_);
}

void RecentRequests::admitted(std::span<const AdmittedRequest> requests) {
  if (requests.empty()) return;
  const std::scoped_lock lock(mutex_);
  for (const AdmittedRequest& one : requests) {
    const auto found = by_engine_id_.find(one.request);
    if (found == by_engine_id_.end()) continue;
    LiveRequest& live = *found->second;
    live.admitted_ = true;
    live.cached_tokens_ = one.hit_tokens;
    live.miss_reason_ = one.miss_reason;
  }
}

void RecentRequests::finished(const std::shared_ptr<LiveRequest>& live, const RequestResult& result, uint64_t now_us) {
  RequestRow row;
  row.id = live != nullptr ? live->id_ : "";
  row.state = end_of(result);
  row.arrival_us = live != nullptr ? live->arrival_us_ : result.arrival_us;
  row.end_us = now_us;
  row.prompt_tokens = result.prompt_tokens;
  row.output_tokens = result.completion_tokens;
  if (result.first_scheduled_us > 0) {
    row.cached_tokens = result.cached_tokens;
    row.miss_reason = result.miss_reason;
  }
  if (result.first_token_us > 0) row.ttft_ms = ms_between(row.arrival_us, result.first_token_us);
  if (result.last_token_us > result.first_token_us) row.tpot_ms = result.tpot_ms;
  const std::scoped_lock lock(mutex_);
  if (live != nullptr) remove(*live);
  ended_.push_front(std::move(row));
  if (ended_.size() > max_ended_) ended_.pop_back();
}

void RecentRequests::refused(const std::shared_ptr<LiveRequest>& live) {
  const std::scoped_lock lock(mutex_);
  if (live != nullptr) remove(*live);
}

RequestRow RecentRequests::row_of(const LiveRequest& live) const {
  RequestRow row;
  row.id = live.id_;
  row.arrival_us = live.arrival_us_;
  row.prompt_tokens = live.prompt_tokens_;
  row.output_tokens = live.output_tokens_;
  const uint64_t first_us = live.first_token_us_, last_us = live.last_token_us_;
  row.state = first_us > 0 ? RowState::decode : live.admitted_ ? RowState::prefill : RowState::waiting;
  if (live.admitted_) {
    row.cached_tokens = live.cached_tokens_;
    row.miss_reason = live.miss_reason_;
  }
  if (first_us > 0) row.ttft_ms = ms_between(row.arrival_us, first_us);
  if (last_us > first_us && row.output_tokens > live.samples_) {
    // Samples run side by side.
    const double later = static_cast<double>(row.output_tokens - live.samples_) / live.samples_;
    row.tpot_ms = ms_between(first_us, last_us) / later;
  }
  return row;
}

std::vector<RequestRow> RecentRequests::rows(size_t most) const {
  std::vector<RequestRow> out;
  const std::scoped_lock lock(mutex_);
  for (const std::shared_ptr<LiveRequest>& live : live_) {
    if (out.size() >= most) return out;
    out.push_back(row_of(*live));
  }
  for (const RequestRow& row : ended_) {
    if (out.size() < most && !row.id.empty()) out.push_back(row);
  }
  return out;
}

// Copied under the lock, sorted without it.
std::vector<double> RecentRequests::times(std::optional<double> RequestRow::*time) const {
  std::vector<double> values;
  const std::scoped_lock lock(mutex_);
  for (const RequestRow& row : ended_) {
    if (row.*time) values.push_back(*(row.*time));
  }
  return values;
}

Percentiles RecentRequests::ttft_ms() const { return percentiles(times(&RequestRow::ttft_ms)); }
Percentiles RecentRequests::tpot_ms() const { return percentiles(times(&RequestRow::tpot_ms)); }

}  // namespace kvarto
