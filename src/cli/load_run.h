// Runs a workload against a server: closed loop (so many jobs at any time) or open loop (jobs start when they are due,
// however the server does). One thread per running job; each has a sender of its own. How time passes and how requests
// travel is given by the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/load_stats.h"
#include "cli/load_workload.h"

namespace kvarto {

// Seconds since the run began. Any thread.
class LoadTime {
 public:
  virtual ~LoadTime() = default;
  virtual double now_s() const = 0;
  // Returns at that time, or soon after `stop` says so.
  virtual void wait_until(double time_s, const std::function<bool()>& stop) const = 0;
};
std::unique_ptr<LoadTime> real_time();

struct LoadAnswer {
  std::string text;
  double retry_after_s = 0;  // of a 503
};

// One connection. Fills what it sees of `record`; `give_up` is asked again and again while it waits, and ends the
// request: the caller knows why.
class LoadSender {
 public:
  virtual ~LoadSender() = default;
  virtual LoadAnswer send(const LoadRequest& request, const std::function<bool()>& give_up, LoadRecord& record) = 0;
};

enum class Arrivals : uint8_t { closed_loop, poisson, trace };

struct LoadPlan {
  uint64_t seed = 1;
  Arrivals arrivals = Arrivals::closed_loop;
  uint32_t concurrency = 1;  // closed loop: jobs at any time; else the most threads
  double rate = 0;           // of poisson: jobs per second
  std::optional<uint64_t> jobs = {};
  std::optional<double> duration_s = {};  // no job or turn starts later; what runs may end
  double abort_share = 0;                 // of the requests, hung up on at a random moment
  double abort_within_s = 1;
};

struct LoadProgress {
  uint64_t started = 0, ended = 0, failed = 0, running = 0, output_tokens = 0;  // jobs; of requests: failed, tokens
  double now_s = 0;
};

class LoadRun {
 public:
  using MakeSender = std::function<std::unique_ptr<LoadSender>()>;
  // Called by the thread of run(), a few times a second; true ends the run.
  using OnProgress = std::function<bool(const LoadProgress&)>;

  LoadRun(const Workload& workload, RequestStyle style, LoadPlan plan, const LoadTime& time, MakeSender make_sender)
      : workload_(workload),
        style_(std::move(style)),
        plan_(std::move(plan)),
        time_(time),
        make_sender_(std::move(make_sender)) {}

  // Records in the order of their start.
  std::vector<LoadRecord> run(const OnProgress& on_progress) const;

 private:
  const Workload& workload_;
  const RequestStyle style_;
  const LoadPlan plan_;
  const LoadTime& time_;
  const MakeSender make_sender_;
};

}  // namespace kvarto
