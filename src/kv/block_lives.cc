#include "kv/block_lives.h"

#include <cmath>

namespace kvarto {
namespace {

// Spreads a running number over all 64 bits (the finaliser of SplitMix64).
uint64_t spread(uint64_t number) {
  uint64_t x = number * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

BlockLives::BlockLives(std::function<uint64_t()> now_us, double sample, std::function<void(const BlockLife&)> sink)
    : now_us_(std::move(now_us)), sink_(std::move(sink)) {
  if (sink_ == nullptr || !(sample > 0.0)) return;
  sampled_below_ = sample >= 1.0 ? UINT64_MAX : static_cast<uint64_t>(std::ldexp(sample, 64));
}

void BlockLives::taken(BlockId id) {
  if (id >= lives_.size()) lives_.resize(id + 1);
  const uint64_t at = now();
  lives_[id] = {.taken = at, .used = at, .sampled = spread(++number_) < sampled_below_};
}

void BlockLives::hit(BlockId id, uint32_t group) {
  const uint64_t at = now();
  tell(BlockLife::Moment::reused, lives_[id], group, at);
  lives_[id].used = at;
}

void BlockLives::replaced(BlockId id, uint32_t group) {
  if (lives_[id].sampled) tell(BlockLife::Moment::replaced, lives_[id], group, now());
}

void BlockLives::tell(BlockLife::Moment moment, const Life& life, uint32_t group, uint64_t at) const {
  if (life.sampled) {
    sink_({.moment = moment, .group = group, .idle_us = at - life.used, .lifetime_us = at - life.taken});
  }
}

}  // namespace kvarto
