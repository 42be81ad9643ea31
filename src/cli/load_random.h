// Draws of a load run: each is a pure function of the seed and of what it is for, so that a run does not depend on the
// order in which threads ask. Any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace kvarto {

// Vigna's splitmix64.
inline uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t mix(std::initializer_list<uint64_t> parts) {
  uint64_t state = 0;
  for (const uint64_t part : parts) state = splitmix64(state ^ part);
  return state;
}

inline double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }  // [0, 1)

inline double exponential(uint64_t bits, double rate) { return -std::log1p(-unit(bits)) / rate; }

// What a draw is for; the first part of what is mixed after the seed.
enum LoadDraw : uint64_t {
  kDrawLength = 1,
  kDrawOutput,
  kDrawShared,
  kDrawFamily,
  kDrawThink,
  kDrawArrival,
  kDrawAbort,
  kDrawOwnText,
  kDrawFamilyText,
  kDrawSystemText,
  kDrawBlockText
};

}  // namespace kvarto
