// NearMissBudget: how much of which prompts may be compared with what is cached before they run. A comparison hashes
// the prompt's blocks on the engine's thread, which makes every stream wait, so calls that wait for it share what one
// step may cost; who comes when it is used up is not looked at. Any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "kvarto/types.h"

namespace kvarto {

class NearMissBudget {
 public:
  static constexpr size_t kPrompts = 4;        // of one call, the first ones
  static constexpr size_t kTokens = 32 << 10;  // of all that wait together: 2,048 hashes with blocks of 16

  // Tokens of the first prompts that may be compared, one number a prompt; empty: none. Their sum goes to give_back().
  std::vector<size_t> take(std::span<const std::vector<TokenId>> prompts) {
    std::vector<size_t> taken;
    const std::scoped_lock lock(mutex_);
    for (const std::vector<TokenId>& prompt : prompts.first(std::min(prompts.size(), kPrompts))) {
      const size_t tokens = std::min(prompt.size(), kTokens - waiting_);
      if (tokens == 0) break;
      waiting_ += tokens;
      taken.push_back(tokens);
    }
    return taken;
  }
  void give_back(size_t tokens) {
    const std::scoped_lock lock(mutex_);
    waiting_ -= tokens;
  }

 private:
  std::mutex mutex_;
  size_t waiting_ = 0;
};

}  // namespace kvarto
