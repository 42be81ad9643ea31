// RecentRequests: the rows of the dashboard's table, and exact percentiles over the last requests that ended. Bounded;
// holds numbers and ids, no text. Owned by the server; calls from any thread. A LiveRequest is told of its tokens by
// the engine's thread without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvarto/engine.h"

namespace kvarto {

enum class RowState : uint8_t { waiting, prefill, decode, stop, length, aborted, failed };
std::string_view row_state_name(RowState state);  // "waiting"

// Times of the engine's steady clock; 0: not yet.
struct RequestRow {
  std::string id = {};
  RowState state = RowState::waiting;
  uint64_t arrival_us = 0, end_us = 0;
  uint64_t prompt_tokens = 0, output_tokens = 0;
  std::optional<uint64_t> cached_tokens = {};  // known once it was scheduled
  std::optional<MissReason> miss_reason = {};
  std::optional<double> ttft_ms = {}, tpot_ms = {};  // the latter from a second token on
};

// A request that has not ended.
class LiveRequest {
 public:
  LiveRequest(std::string id, uint64_t prompt_tokens, uint32_t samples, uint64_t arrival_us)
      : id_(std::move(id)), prompt_tokens_(prompt_tokens), samples_(samples), arrival_us_(arrival_us) {}
  // For every TokenEvent.
  void token(const TokenEvent& event) {
    if (!event.token) return;
    ++output_tokens_;
    uint64_t none = 0;
    first_token_us_.compare_exchange_strong(none, event.time_us);
    last_token_us_ = event.time_us;
  }

 private:
  friend class RecentRequests;
  const std::string id_;
  const uint64_t prompt_tokens_;
  const uint32_t samples_;
  const uint64_t arrival_us_;
  std::atomic<uint64_t> output_tokens_ = 0, first_token_us_ = 0, last_token_us_ = 0;
  // The rest under the lock of RecentRequests.
  std::list<std::shared_ptr<LiveRequest>>::iterator place_;
  bool listed_ = true;       // until it ends
  RequestId engine_id_ = 0;  // 0: not submitted yet
  bool admitted_ = false;
  uint64_t cached_tokens_ = 0;
  MissReason miss_reason_ = MissReason::none;
};

struct Percentiles {
  size_t count = 0;
  double p50 = 0, p95 = 0, p99 = 0;
};
// By nearest rank: the least value that at least so many per cent of all do not exceed.
Percentiles percentiles(std::vector<double> values);

class RecentRequests {
 public:
  explicit RecentRequests(size_t max_ended = 512, size_t max_live = 4096)
      : max_ended_(max_ended), max_live_(max_live) {}

  // Once per request (prompt) that is handed to the engine. Null when there are too many: it is not shown.
  std::shared_ptr<LiveRequest> begin(std::string id, uint64_t prompt_tokens, uint32_t samples, uint64_t arrival_us);
  // The engine took it, under this id.
  void submitted(const std::shared_ptr<LiveRequest>& live, RequestId engine_id);
  // For Engine::observe. A request admitted before submitted() was called waits until its first token.
  void admitted(std::span<const AdmittedRequest> requests);
  // Ends it; a null `live` is only counted among the percentiles.
  void finished(const std::shared_ptr<LiveRequest>& live, const RequestResult& result, uint64_t now_us);
  // The engine refused it, or it was given up before.
  void refused(const std::shared_ptr<LiveRequest>& live);

  // Those that run, latest first, then those that ended, latest first.
  std::vector<RequestRow> rows(size_t most) const;
  Percentiles ttft_ms() const;
  Percentiles tpot_ms() const;

 private:
  RequestRow row_of(const LiveRequest& live) const;
  void remove(LiveRequest& live);
  std::vector<double> times(std::optional<double> RequestRow::*time) const;

  const size_t max_ended_, max_live_;
  mutable std::mutex mutex_;                      // the engine's thread takes it, too: nothing that takes long under it
  std::list<std::shared_ptr<LiveRequest>> live_;  // latest first
  std::unordered_map<RequestId, LiveRequest*> by_engine_id_;  // of live_, once submitted
  std::deque<RequestRow> ended_;                              // latest first
};

}  // namespace kvarto
