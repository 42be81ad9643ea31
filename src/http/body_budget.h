// BodyBudget: how many bytes of request bodies a server holds, all connections together: those that are being read and
// those whose handlers have not taken them yet. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace kvarto {

class BodyBudget {
 public:
  explicit BodyBudget(size_t most) : most_(most) {}

  bool take(size_t bytes) {  // false: that would be too many, and nothing is taken
    size_t held = held_;
    do {
      if (bytes > most_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + bytes));
    return true;
  }
  void give(size_t bytes) { held_ -= bytes; }
  size_t most() const { return most_; }
  size_t held() const { return held_; }

 private:
  const size_t most_;
  std::atomic<size_t> held_ = 0;
};

// What one body takes of it. One thread at a time.
class BodyCharge {
 public:
  BodyCharge() = default;
  explicit BodyCharge(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  BodyCharge(BodyCharge&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyCharge& operator=(BodyCharge&& other) noexcept {
    if (this == &other) return *this;
    release();
    budget_ = std::move(other.budget_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~BodyCharge() { release(); }

  bool grow_to(size_t bytes) {
    if (bytes <= bytes_) return true;
    if (budget_ == nullptr || !budget_->take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }
  void release() {
    if (const size_t bytes = std::exchange(bytes_, 0); bytes > 0) budget_->give(bytes);
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace kvarto
