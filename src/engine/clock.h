// Clock: the one source of time in the engine. Injected, so that tests script it; decisions never read it, they get
// what the cost model learned from it. now_us() may be called by any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvarto {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_us() const = 0;  // never goes back
};

class SteadyClock : public Clock {
 public:
  uint64_t now_us() const override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  }
};

}  // namespace kvarto
