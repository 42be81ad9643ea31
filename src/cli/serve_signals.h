// SIGTERM and Ctrl-C for a server: the first one asks it to end, a second one ends the process at once. Only the
// command line touches signals. Made before any other thread, so that all of them leave these signals to this one's.
#pragma once

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

namespace kvarto {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Until then there is nothing to end in order: the first signal ends the process.
  void serving();
  // Waits for the first signal and returns its number; 0: give_up() was called before. Main thread.
  int wait();
  // Ends wait(). Any thread.
  void give_up();

 private:
  void watch();

  sigset_t watched_, before_;
  std::mutex mutex_;
  std::condition_variable came_;
  int first_ = 0;
  bool serving_ = false, given_up_ = false, stopping_ = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace kvarto
