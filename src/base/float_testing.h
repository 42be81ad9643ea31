// What tests of float kernels share: comparison by bits, random values with the awkward ones among them, and buffers
// whose end is the end of readable memory. Tests only.
#pragma once

#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace kvarto {

// NaNs are equal to each other: which payload survives a sum is the compiler's choice of operand order.
inline bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// |y - exact| in units of the last place of a float near `exact`.
inline double ulp_error(float y, long double exact) {
  const float nearest = static_cast<float>(exact);
  if (!std::isfinite(nearest)) return same_bits(y, nearest) ? 0.0 : 1e9;
  const float above = std::nextafter(std::fabs(nearest), std::numeric_limits<float>::infinity());
  return static_cast<double>(std::fabs(y - exact) / (static_cast<long double>(above) - std::fabs(nearest)));
}

class FloatSource {
 public:
  explicit FloatSource(uint64_t seed) : random_(seed) {}
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_); }
  size_t size(size_t low, size_t high) { return std::uniform_int_distribution<size_t>(low, high)(random_); }
  // One value in eight is zero, infinite, NaN, subnormal or huge.
  float awkward() {
    constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
    constexpr float kValues[] = {0.0f,    -0.0f,  kInf,  -kInf,  kNaN,     1e-42f,
                                 -1e-45f, 1e-30f, 3e38f, -3e38f, 65504.0f, 1.0f};
    return size(0, 7) == 0 ? kValues[size(0, std::size(kValues) - 1)] : uniform(-4.0f, 4.0f);
  }

 private:
  std::mt19937_64 random_;
};

// `size` floats; the byte behind the last one cannot be touched.
class FencedFloats {
 public:
  explicit FencedFloats(size_t size, float fill = 0.0f) : size_(size) {
    constexpr size_t kPage = 4096;
    readable_ = (size * sizeof(float) + kPage - 1) / kPage * kPage;
    pages_ = mmap(nullptr, readable_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(static_cast<char*>(pages_) + readable_, kPage, PROT_NONE);
    for (float& v : all()) v = fill;
  }
  FencedFloats(const FencedFloats&) = delete;
  FencedFloats& operator=(const FencedFloats&) = delete;
  ~FencedFloats() { munmap(pages_, readable_ + 4096); }

  float* data() { return reinterpret_cast<float*>(static_cast<char*>(pages_) + readable_) - size_; }
  std::span<float> all() { return {data(), size_}; }
  float& operator[](size_t i) { return data()[i]; }

 private:
  size_t size_, readable_;
  void* pages_;
};

}  // namespace kvarto
