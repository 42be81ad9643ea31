// Filler text whose length is known in tokens of the server's tokenizer: common words, each of which (with the space in
// front) the server counts as one token. Immutable once calibrated; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

// Tokens of a text as the server counts them, whatever it adds of its own (a start token, a template).
using CountTokens = std::function<Result<uint32_t>(const std::string& text)>;

class Filler {
 public:
  // Every text starts with this word: behind it all words have a space in front, in every template.
  static constexpr std::string_view kOpening = "The";

  // Asks for a few dozen counts at most.
  static Result<Filler> calibrate(const CountTokens& count);

  // Words for `tokens` tokens, drawn by `id`; each starts with a space. The words of fewer tokens are the first of
  // them.
  std::string words(uint64_t id, uint32_t tokens) const;
  // What the server counts for the opening alone.
  uint32_t overhead() const { return overhead_; }
  // Whether lengths are exact. A tokenizer that cuts up common words gets as many as its average asks for.
  bool exact() const { return exact_; }

 private:
  std::vector<std::string_view> words_;
  uint32_t overhead_ = 0;
  double tokens_per_word_ = 1;
  bool exact_ = true;
};

}  // namespace kvarto
