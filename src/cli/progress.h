// A progress bar on stderr: on a terminal only, and only for what takes longer than a second. Main thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace kvarto {

class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();  // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(size_t done, size_t total, const std::string& extra = {});

 private:
  void wipe();

  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool on_terminal_;
  bool drawn_ = false;
  Clock::time_point next_draw_;
};

}  // namespace kvarto
