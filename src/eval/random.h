// Randomness of tasks and resampling: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// OOPSLA 2014). Its i-th number depends on seed and i alone, so that another program can draw the same. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvarto {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

inline uint64_t splitmix(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

// Number i >= 1 of the sequence that starts with `seed`.
inline uint64_t splitmix_at(uint64_t seed, uint64_t i) { return splitmix(seed + i * kSplitMixStep); }

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : seed_(seed) {}
  uint64_t next() { return splitmix_at(seed_, ++drawn_); }
  // In [0, n), n < 2^32: the upper 32 bits, scaled. The bias is below n / 2^32.
  uint64_t below(uint64_t n) { return ((next() >> 32) * n) >> 32; }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t seed_, drawn_ = 0;
};

}  // namespace kvarto
