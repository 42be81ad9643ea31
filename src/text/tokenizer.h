// Text <-> token ids. A Tokenizer is made once from a model file, is immutable, and may be used by any thread.
// Kinds: byte-level BPE (GGUF model "gpt2" with a named pre-tokenizer) and SentencePiece-style BPE (GGUF model "llama").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf.h"
#include "kvarto/result.h"

namespace kvarto {

using TokenId = int32_t;

// Token kinds as GGUF numbers them.
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// What a tokenizer is built from; filled from GGUF keys, or by hand in tests (merge lists, vocabulary packages).
struct Vocabulary {
  std::string model;                       // "gpt2" | "llama"
  std::string pre;                         // name of the pre-tokenizer; "" = key missing ("default", with a warning)
  std::vector<std::string> tokens;         // as stored (byte-level symbols for gpt2, U+2581 for spaces in llama)
  std::vector<float> scores;               // llama only
  std::vector<TokenKind> kinds;            // empty = all normal
  std::vector<std::string> merges;         // gpt2 only: "left right", best first
  std::optional<TokenId> bos, eos, eot, unk, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // nullopt = key missing: the kind's default
};

struct EncodeOptions {
  bool parse_special = true;   // false: control tokens written in the text are ordinary text (user defined ones always match)
  bool add_bos = false;        // true: prepend BOS if the model's rules want one (wants_bos)
};

class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> from_gguf(const GgufFile& file);
  static Result<std::shared_ptr<const Tokenizer>> from_vocabulary(Vocabulary vocabulary);
  virtual ~Tokenizer() = default;

  // Errors: text that is not valid UTF-8 (says at which byte), a pre-tokenizer match limit, more than 2^31 tokens.
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Bytes of one token exactly as generation would emit them ("Ġhi" -> " hi"); empty for control tokens unless `special`.
  // An id outside the vocabulary gives an empty string.
  std::string piece(TokenId id, bool special = false) const;
  // Joined pieces; may end in the middle of a UTF-8 character (see StreamDecoder). A SentencePiece model's single leading
  // prefix space is dropped.
  std::string decode(std::span<const TokenId> ids, bool special = false) const;

  size_t size() const { return vocabulary_.tokens.size(); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  // A BOS belongs in front of a prompt: bos exists and (add_bos is true, or the key is absent and the kind's default says so).
  bool wants_bos() const { return wants_bos_; }
  bool is_control(TokenId id) const;
  // Ids that end generation: eos, eot, and vocabulary entries by well-known end-of-turn names (<|im_end|>, <end_of_turn>, ...).
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }
  std::optional<TokenId> find(std::string_view token) const;  // exact stored spelling
  const std::vector<std::string>& warnings() const { return warnings_; }  // e.g. missing `pre`

 protected:
  Tokenizer() = default;
  // One stretch of text without special tokens.
  virtual Status encode_text(std::string_view text, bool first, std::vector<TokenId>& out) const = 0;
  Vocabulary vocabulary_;
  bool wants_bos_ = false;
  std::vector<TokenId> stop_ids_;
  std::vector<std::string> warnings_;
};

}  // namespace kvarto
