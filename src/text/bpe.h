// Byte-level BPE (GGUF model "gpt2"): text is split by a pre-tokenizer, each piece becomes bytes written as 256
// printable symbols, and neighbours merge by rank (lowest first, leftmost on ties) in O(n log n). Immutable; any
// thread.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace kvarto {

// How a vocabulary writes these bytes: each as one printable character.
std::string byte_symbols(std::string_view bytes);

class BpeTokenizer final : public Tokenizer {
 public:
  // `vocabulary` has passed the checks of Tokenizer::from_vocabulary.
  static Result<std::shared_ptr<const Tokenizer>> create(Vocabulary vocabulary, std::vector<std::string> warnings);

 private:
  struct Merge {
    uint32_t rank;
    TokenId result;
  };
  struct Slot {
    uint64_t pair = kNoPair;
    Merge merge{};
  };
  // One piece while it merges: a linked list of symbols and a heap of possible merges. Reused from piece to piece.
  struct Work;
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  BpeTokenizer(Vocabulary vocabulary, std::vector<std::string> warnings, PreTokenizer pre_tokenizer);
  Status encode_text(std::string_view text, std::vector<TokenId>& out) const override;
  std::string text_of(TokenId id) const override;

  Status load_merges();
  void rank_by_id();
  void reserve_merges(size_t count);
  void add_merge(TokenId left, TokenId right, Merge merge);
  const Merge* find_merge(TokenId left, TokenId right) const;
  void encode_piece(std::string_view piece, Work& work, std::vector<TokenId>& out) const;

  PreTokenizer pre_tokenizer_;
  std::array<TokenId, 256> byte_ids_{};  // -1: the vocabulary has no token for this byte
  std::vector<Slot> merges_;             // open addressing, a power of two, at most half full
};

}  // namespace kvarto
