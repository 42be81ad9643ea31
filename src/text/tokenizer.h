// Text <-> token ids. A Tokenizer is made once from a model file, is immutable, and may be used by any thread.
// Kinds: byte-level BPE (GGUF model "gpt2" with a named pre-tokenizer) and SentencePiece-style BPE (GGUF model
// "llama").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/gguf.h"
#include "kvarto/result.h"

namespace kvarto {

using TokenId = int32_t;

class SpecialTokens;

// Token kinds as GGUF numbers them.
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// What a tokenizer is built from; filled from GGUF keys, or by hand in tests (merge lists, vocabulary packages).
struct Vocabulary {
  std::string model;                // "gpt2" | "llama"
  std::string pre;                  // name of the pre-tokenizer; "" = key missing ("default", with a warning)
  std::vector<std::string> tokens;  // as stored (byte-level symbols for gpt2, U+2581 for spaces in llama)
  std::vector<float> scores;        // llama only
  std::vector<TokenKind> kinds;     // empty = all normal (llama: "<0xNN>" spellings are bytes)
  // gpt2 only: "left right", best first. Empty: any two neighbours that join to a token may merge, lowest id first, as
  // rank-ordered vocabularies (tekken) are defined; a GGUF file must have merges.
  std::vector<std::string> merges;
  std::optional<TokenId> bos, eos, eot, unk, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // nullopt = key missing: the kind's default
};

struct EncodeOptions {
  bool parse_special =
      true;              // false: control tokens written in the text are ordinary text (user defined ones always match)
  bool add_bos = false;  // true: begin with BOS if the model's rules want one (wants_bos); never with two
};

class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> from_gguf(const GgufFile& file);
  // Errors: arrays of unequal length, bos/eos/eot outside the vocabulary, unknown model or pre-tokenizer, malformed
  // merges. A pad or unk id outside the vocabulary is dropped with a warning (files use such values for "none").
  static Result<std::shared_ptr<const Tokenizer>> from_vocabulary(Vocabulary vocabulary);
  virtual ~Tokenizer();

  // Errors: text that is not valid UTF-8 (says at which byte), a pre-tokenizer match limit, text of 2^31 bytes and
  // more.
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Bytes of one token exactly as generation would emit them ("Ġhi" -> " hi"); empty for control, unknown and unused
  // tokens unless `special`. An id outside the vocabulary gives an empty string.
  std::string piece(TokenId id, bool special = false) const;
  // Joined pieces; may end in the middle of a UTF-8 character (see StreamDecoder). A SentencePiece model's single
  // leading prefix space is dropped.
  std::string decode(std::span<const TokenId> ids, bool special = false) const;

  size_t size() const { return vocabulary_.tokens.size(); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  // A BOS belongs in front of a prompt: bos exists and (add_bos is true, or the key is absent and the kind's default
  // says so).
  bool wants_bos() const { return wants_bos_; }
  // The text itself begins with the BOS token's spelling, so that add_bos adds nothing: worth a warning on raw prompts.
  bool begins_with_bos(std::string_view text) const;
  bool is_control(TokenId id) const;  // control and unknown tokens: no text of their own
  // Ids that end generation, ascending: eos, eot, and every *control* token with a well-known name for the end of a
  // turn or a text (list in tokenizer.cc). Tokens of other kinds do not count: Gemma's `</s>` is the HTML tag.
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }
  // Exact stored spelling. Of duplicates the one that text encodes to, else the lowest id.
  std::optional<TokenId> find(std::string_view token) const;
  const std::vector<std::string>& warnings() const { return warnings_; }  // e.g. missing `pre`

 protected:
  // `vocabulary` has passed the checks of from_vocabulary; its `kinds` are filled.
  Tokenizer(Vocabulary vocabulary, std::vector<std::string> warnings);
  // One stretch of valid text: the whole text, or what lies between special tokens.
  virtual Status encode_text(std::string_view text, std::vector<TokenId>& out) const = 0;
  // Bytes of a token that is text: normal, byte or user defined.
  virtual std::string text_of(TokenId id) const = 0;

  TokenKind kind(TokenId id) const { return vocabulary_.kinds[static_cast<size_t>(id)]; }
  // The token that text may turn into: normal and user defined ones, by stored spelling.
  std::optional<TokenId> find_text(std::string_view token) const;
  void add_special(TokenId id, bool always);
  void set_bos_default(bool bos_by_default);

  Vocabulary vocabulary_;
  bool drops_prefix_space_ = false;
  std::vector<std::string> warnings_;

 private:
  bool wants_bos_ = false;
  std::vector<TokenId> stop_ids_;
  std::unordered_map<std::string_view, TokenId> ids_;  // keys point into vocabulary_
  std::unique_ptr<SpecialTokens> special_;
};

}  // namespace kvarto
