// SentencePiece-style BPE (GGUF model "llama"): spaces become U+2581, user defined tokens are cut out, then
// neighbouring symbols merge by the score of what they join to (highest first, leftmost on ties) in O(n log n); what
// has no token becomes byte tokens. Immutable; any thread.
#pragma once

#include <array>

#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace kvarto {

class SpmTokenizer final : public Tokenizer {
 public:
  // `vocabulary` has passed the checks of Tokenizer::from_vocabulary.
  static Result<std::shared_ptr<const Tokenizer>> create(Vocabulary vocabulary, std::vector<std::string> warnings);

 private:
  // One stretch while it merges: a linked list of symbols and a heap of possible merges. Reused from stretch to
  // stretch.
  struct Work;

  SpmTokenizer(Vocabulary vocabulary, std::vector<std::string> warnings);
  Status encode_text(std::string_view text, std::vector<TokenId>& out) const override;
  std::string text_of(TokenId id) const override;

  // `text` has U+2581 for spaces and no user defined tokens.
  void encode_words(std::string_view text, Work& work, std::vector<TokenId>& out) const;
  void merge(std::string_view text, Work& work, std::vector<TokenId>& out) const;
  void emit(std::string_view symbol, std::vector<TokenId>& out) const;

  // User defined spellings with U+2581 for spaces: SentencePiece looks for them after the spaces are replaced.
  SpecialTokens user_defined_;
  std::array<TokenId, 256> byte_ids_{};  // -1: the vocabulary has no such byte token
  bool space_prefix_ = true;
  // No token has a space behind another character, so nothing merges across the start of a word and words can be merged
  // one by one, with the same result.
  bool words_are_separate_ = true;
};

}  // namespace kvarto
