#include "cli/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "cli/load_random.h"

namespace kvarto {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};  // how often waiting threads look around
constexpr double kLongestPause = 5;
constexpr double kFirstPause = 0.1;  // after a failure; twice as long after each further one in a row

class RealTime : public LoadTime {
 public:
  double now_s() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void wait_until(double time_s, const std::function<bool()>& stop) const override {
    for (double left = time_s - now_s(); left > 0 && !stop(); left = time_s - now_s()) {
      std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(kLook, std::chrono::duration<double>(left)));
    }
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// One run: its queue, its threads, its records.
class Crew {
 public:
  Crew(const Workload& workload, const RequestStyle& style, const LoadPlan& plan, const LoadTime& time,
       const LoadRun::MakeSender& make_sender)
      : workload_(workload), style_(style), plan_(plan), time_(time), make_sender_(make_sender), limit_(job_limit()) {}

  std::vector<LoadRecord> run(const LoadRun::OnProgress& on_progress) {
    const std::function<bool()> look = [&] {
      if (!stop_ && on_progress(progress())) stop_ = true;
      return stop_.load();
    };
    if (plan_.arrivals == Arrivals::closed_loop) {
      for (uint64_t i = 0; i < std::min<uint64_t>(plan_.concurrency, limit_); ++i) add_thread();
    } else {
      dispatch(look);
    }
    close_and_wait(look);
    for (std::thread& thread : threads_) thread.join();
    std::ranges::stable_sort(records_, {}, &LoadRecord::start_s);
    return std::move(records_);
  }

 private:
  struct Due {
    uint64_t number = 0;
    double time_s = 0;
  };

  uint64_t job_limit() const {
    return std::min(plan_.jobs.value_or(UINT64_MAX), workload_.size().value_or(UINT64_MAX));
  }
  bool late(double time_s) const { return plan_.duration_s && time_s >= *plan_.duration_s; }

  // --- the thread of run()

  void dispatch(const std::function<bool()>& look) {
    double due = 0;
    for (uint64_t number = 0; number < limit_ && !stop_; ++number) {
      if (plan_.arrivals == Arrivals::poisson) {
        due += exponential(mix({plan_.seed, kDrawArrival, number}), plan_.rate);
      } else {
        due = workload_.job(number).arrival_s.value_or(0);
      }
      if (late(due)) return;
      time_.wait_until(due, look);
      if (look()) return;
      std::unique_lock lock(mutex_);
      queue_.push_back({number, due});
      const bool more = queue_.size() > idle_ && threads_.size() < plan_.concurrency;
      lock.unlock();
      if (more) add_thread();
      something_.notify_all();
    }
  }

  void add_thread() {
    {
      const std::lock_guard lock(mutex_);
      ++alive_;
    }
    threads_.emplace_back([this] { work(); });
  }

  void close_and_wait(const std::function<bool()>& look) {
    std::unique_lock lock(mutex_);
    closed_ = true;
    something_.notify_all();
    while (alive_ > 0) {
      something_.wait_for(lock, kLook);
      lock.unlock();
      look();
      lock.lock();
      if (stop_) queue_.clear();
    }
  }

  LoadProgress progress() {
    const std::lock_guard lock(mutex_);
    LoadProgress out = progress_;
    out.running = out.started - out.ended;
    out.now_s = time_.now_s();
    return out;
  }

  // --- the others

  void work() {
    const std::unique_ptr<LoadSender> sender = make_sender_();
    double pause_s = kFirstPause;
    while (const std::optional<Due> due = next()) {
      run_job(*sender, *due, pause_s);
      const std::lock_guard lock(mutex_);
      ++progress_.ended;
    }
    const std::lock_guard lock(mutex_);
    --alive_;
    something_.notify_all();
  }

  std::optional<Due> next() {
    std::unique_lock lock(mutex_);
    if (plan_.arrivals == Arrivals::closed_loop) {
      const double now = time_.now_s();
      if (stop_ || next_ >= limit_ || late(now)) return std::nullopt;
      ++progress_.started;
      return Due{next_++, now};
    }
    ++idle_;
    something_.wait(lock, [&] { return !queue_.empty() || closed_; });
    --idle_;
    if (queue_.empty()) return std::nullopt;
    const Due due = queue_.front();
    queue_.pop_front();
    ++progress_.started;
    return due;
  }

  void run_job(LoadSender& sender, const Due& due, double& pause_s) {
    const LoadJob job = workload_.job(due.number);
    std::vector<std::string> answers;
    double due_s = due.time_s;
    for (size_t turn = 0; turn < job.turns.size(); ++turn) {
      if (turn > 0) {
        due_s = time_.now_s() + job.turns[turn].think_s;
        time_.wait_until(due_s, [&] { return stop_.load(); });
        if (stop_ || late(due_s)) return;
      }
      const LoadRequest request = request_of(style_, job, turn, answers);
      std::optional<std::string> answer =
          ask(sender, request, mix({plan_.seed, kDrawAbort, due.number, turn}), due_s, pause_s);
      if (!answer) return;
      answers.push_back(std::move(*answer));
    }
  }

  // None: the chat cannot go on. `pause_s`: after the next failure, so that a dead server is not asked as fast as it
  // can be found dead.
  std::optional<std::string> ask(LoadSender& sender, const LoadRequest& request, uint64_t dice, double due_s,
                                 double& pause_s) {
    LoadRecord record;
    record.prompt_tokens_asked = request.prompt_tokens_asked;
    record.due_s = due_s;
    record.start_s = time_.now_s();
    const bool aborts = unit(dice) < plan_.abort_share;
    // Half of them after some of their tokens, half at some time: before the first token, too.
    const uint64_t moment = splitmix64(dice);
    const bool by_tokens = moment % 2 == 0;
    const uint64_t abort_events = splitmix64(moment) % std::max(1u, request.output_tokens);
    const double abort_s = record.start_s + unit(splitmix64(moment)) * plan_.abort_within_s;
    bool hung_up = false;
    const std::function<bool()> give_up = [&] {
      hung_up |= aborts && (by_tokens ? record.events >= abort_events : time_.now_s() >= abort_s);
      return hung_up || stop_.load();
    };
    LoadAnswer answer = sender.send(request, give_up, record);
    record.end_s = time_.now_s();
    const bool done = record.outcome == LoadOutcome::done;
    // A request that was whole before it was seen to be given up is as good as any.
    if (record.outcome == LoadOutcome::broken && hung_up) {
      record.outcome = LoadOutcome::aborted;
    } else if (record.outcome == LoadOutcome::broken && stop_) {
      record.outcome = LoadOutcome::interrupted;
    }
    const bool failed = record.outcome == LoadOutcome::broken || record.outcome == LoadOutcome::refused;
    keep(std::move(record));
    if (done) pause_s = kFirstPause;
    double wait_s = answer.retry_after_s;
    if (failed && wait_s <= 0) {
      wait_s = pause_s;
      pause_s = std::min(2 * pause_s, kLongestPause);
    }
    if (wait_s > 0 && plan_.arrivals == Arrivals::closed_loop) {
      const double until = time_.now_s() + std::min(wait_s, kLongestPause);
      time_.wait_until(until, [&] { return stop_.load(); });
    }
    if (!done) return std::nullopt;
    return std::move(answer.text);
  }

  void keep(LoadRecord record) {
    const std::lock_guard lock(mutex_);
    progress_.output_tokens += record.output_tokens;
    progress_.failed += record.outcome == LoadOutcome::refused || record.outcome == LoadOutcome::broken ? 1 : 0;
    records_.push_back(std::move(record));
  }

  const Workload& workload_;
  const RequestStyle& style_;
  const LoadPlan& plan_;
  const LoadTime& time_;
  const LoadRun::MakeSender& make_sender_;
  const uint64_t limit_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards all below
  std::condition_variable something_;
  std::deque<Due> queue_;
  uint64_t next_ = 0, alive_ = 0, idle_ = 0;
  bool closed_ = false;
  LoadProgress progress_;
  std::vector<LoadRecord> records_;
};

}  // namespace

std::unique_ptr<LoadTime> real_time() { return std::make_unique<RealTime>(); }

std::vector<LoadRecord> LoadRun::run(const OnProgress& on_progress) const {
  return Crew(workload_, style_, plan_, time_, make_sender_).run(on_progress);
}

}  // namespace kvarto
