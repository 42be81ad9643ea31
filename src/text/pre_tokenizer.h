// Splits text into the pieces inside which byte-level BPE may merge. A pre-tokenizer is a name from GGUF's
// `tokenizer.ggml.pre` and one row of a table (pre_tokenizer.cc): regexes applied in turn, each inside the pieces that
// the one before left, matches and gaps both becoming pieces. Immutable after create; split() may be called from any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

// What else goes with a pre-tokenizer's name.
struct PreTokenizerRules {
  bool bos_by_default;  // wants a BOS when `add_bos_token` is absent
  bool ignore_merges;   // a piece that is a whole vocabulary entry is taken as it is
  bool nfc;             // text is normalised to NFC before it is split
};

class PreTokenizer {
 public:
  // Steps the regex engine may take for one match, so that no text can hang the caller.
  static constexpr uint32_t kMatchLimit = 100'000'000;

  // Errors: unknown name (the message lists the known ones).
  static Result<PreTokenizer> create(std::string_view name, uint32_t match_limit = kMatchLimit);
  static std::vector<std::string> known_names();  // aliases included
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // The pieces of `text` (valid UTF-8) in order; joined they are `text`, none is empty. Errors: the match limit.
  Result<std::vector<std::string_view>> split(std::string_view text) const;
  const PreTokenizerRules& rules() const { return rules_; }

 private:
  PreTokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
  PreTokenizerRules rules_{};
};

}  // namespace kvarto
