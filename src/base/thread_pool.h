// A fixed set of workers that run loops whose units are fixed by the shape of the work. The calling thread (the owner)
// is worker 0. Units are claimed from an atomic counter: which worker runs a unit may vary, what the unit computes may
// not. Waiting spins for at most 50 us, then sleeps. One caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

namespace kvarto {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller; where the system starts fewer, a warning is logged and threads() says how many.
  // Workers (not the caller) are pinned one per core of the process's cpuset when `pin`. Every worker (and the caller,
  // inside run) computes with FTZ and DAZ off and rounding to nearest.
  explicit ThreadPool(int threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(unit, worker) for every unit in [0, units); returns when all are done. body must not throw; no
  // allocation.
  template <typename Body>
  void run(size_t units, const Body& body) {
    run_erased(
        units, [](const void* b, size_t unit, int worker) { (*static_cast<const Body*>(b))(unit, worker); }, &body);
  }

 private:
  using Trampoline = void (*)(const void* body, size_t unit, int worker);
  void run_erased(size_t units, Trampoline call, const void* body) noexcept;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvarto
