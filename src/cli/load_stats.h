// What a load run measures of one request, and what it says of all of them: percentiles, rates, goodput. Percentiles
// are numpy's default ("linear", Hyndman and Fan's type 7): position q * (n - 1) in the sorted values, between two of
// them in proportion. Plain data; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

enum class LoadOutcome : uint8_t {
  done,
  aborted,      // hung up on purpose (--abort)
  interrupted,  // was running when the run ended
  refused,      // a status other than 2xx
  broken,       // no connection, a cut stream, an error inside it, no valid reply
};

// One request. Times are seconds since the run began.
struct LoadRecord {
  LoadOutcome outcome = LoadOutcome::broken;
  int status = 0;                  // 0: none came
  double due_s = 0;                // when it should start; what is measured counts from here
  double start_s = 0;              // when it did
  double first_s = 0, last_s = 0;  // first and last token; meaningless when `events` is 0
  double end_s = 0;
  uint64_t events = 0;               // pieces of the stream that hold tokens; 0 without streaming
  std::vector<float> gaps_s;         // between them
  uint32_t prompt_tokens_asked = 0;  // 0: no length was asked for
  uint32_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  bool usage = false;         // the server counted tokens; else output_tokens are events
  bool cached_known = false;  // ... and those that it had in its cache
  std::string error;          // one line
};

// The p-quantile of sorted values, 0 <= q <= 1; 0 of none.
double quantile(const std::vector<double>& sorted, double q);

struct Spread {
  size_t count = 0;
  double mean = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};
Spread spread_of(std::vector<double> values);

// What a request must keep to count as good.
struct Slo {
  std::optional<double> ttft_s, tpot_s, e2e_s;
  bool any() const { return ttft_s || tpot_s || e2e_s; }
};
// "ttft=1s,tpot=50ms,e2e=10s"
Result<Slo> parse_slo(const std::string& text);
// "1.5s", "50ms", "200us", "2m"
Result<double> parse_seconds(const std::string& flag, const std::string& text);

double ttft_of(const LoadRecord& record);
double e2e_of(const LoadRecord& record);
std::optional<double> tpot_of(const LoadRecord& record);  // none of a single token
// Whether a finished request kept every limit; without a first token (not streamed) no TTFT is kept.
bool keeps(const Slo& slo, const LoadRecord& record);

struct LoadSummary {
  size_t requests = 0, done = 0, aborted = 0, interrupted = 0, overloaded = 0;  // overloaded: status 503
  std::map<int, size_t> refused_by_status;                                      // all other statuses but 2xx
  std::map<std::string, size_t> broken;                                         // by message
  double wall_s = 0;                                                            // from the first start to the last end
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;             // of requests that are done
  size_t usage_missing = 0, cached_missing = 0;                                 // of them without the server's counts
  size_t lengths_asked = 0, lengths_hit = 0;                                    // prompts of a wanted length, and exact
  double requests_per_s = 0, output_tokens_per_s = 0, total_tokens_per_s = 0;
  Spread ttft_s, tpot_s, gap_s, e2e_s, late_s;  // late: start behind due
  size_t good = 0;
  double good_per_s = 0;
};
LoadSummary summarise(const std::vector<LoadRecord>& records, const Slo& slo);

// Tokens per second and requests running, in `buckets` slices of the wall time. A request's tokens are spread evenly
// between its first and its last.
struct LoadTimeline {
  double slice_s = 0;
  std::vector<double> tokens_per_s, running;
};
LoadTimeline timeline_of(const std::vector<LoadRecord>& records, size_t buckets);

}  // namespace kvarto
