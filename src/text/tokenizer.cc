#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>

#include "text/bpe.h"
#include "text/special_tokens.h"
#include "text/spm.h"
#include "text/unicode.h"

namespace kvarto {

namespace {

// Names under which published vocabularies keep the token that ends a turn, a message or a text. All of them end
// generation in the models that have them as control tokens. `<|end|>` is left out where `<|return|>` exists: there it
// ends a part of an answer only.
constexpr std::array<std::string_view, 15> kEndNames = {
    "<|im_end|>",      "<|eot_id|>",    "<|eom_id|>", "<end_of_turn>", "<|end_of_turn|>",
    "<|end_of_text|>", "<|endoftext|>", "</s>",       "<eos>",         "<|end|>",
    "<|return|>",      "<|EOT|>",       "<|eot|>",    "<EOT>",         "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

Status check_lengths(const Vocabulary& v) {
  const size_t size = v.tokens.size();
  if (size == 0) return fail(ErrorCode::corrupt, "tokenizer.ggml.tokens is empty; the file has no usable vocabulary");
  if (size > size_t{std::numeric_limits<TokenId>::max()}) {
    return fail(ErrorCode::unsupported, std::to_string(size) + " tokens do not fit a 32-bit token id");
  }
  const auto unequal = [&](const char* key, size_t count) {
    return fail(ErrorCode::corrupt, std::string(key) + " has " + std::to_string(count) + " entries for " +
                                        std::to_string(size) + " tokens; the file is damaged");
  };
  if (!v.kinds.empty() && v.kinds.size() != size) return unequal("tokenizer.ggml.token_type", v.kinds.size());
  if (v.model == "llama" && v.scores.size() != size) return unequal("tokenizer.ggml.scores", v.scores.size());
  return {};
}

// Special ids must lie inside the vocabulary. What generation depends on is an error, the others are forgotten.
Status check_special_ids(Vocabulary& v, std::vector<std::string>& warnings) {
  struct Entry {
    const char* key;
    std::optional<TokenId>* id;
    bool needed;
  };
  const std::array<Entry, 5> entries = {{{"tokenizer.ggml.bos_token_id", &v.bos, true},
                                         {"tokenizer.ggml.eos_token_id", &v.eos, true},
                                         {"tokenizer.ggml.eot_token_id", &v.eot, true},
                                         {"tokenizer.ggml.unknown_token_id", &v.unk, false},
                                         {"tokenizer.ggml.padding_token_id", &v.pad, false}}};
  for (const Entry& e : entries) {
    if (!*e.id || (**e.id >= 0 && static_cast<size_t>(**e.id) < v.tokens.size())) continue;
    const std::string what = std::string(e.key) + " = " + std::to_string(**e.id) + " is outside the vocabulary of " +
                             std::to_string(v.tokens.size()) + " tokens";
    if (e.needed) return fail(ErrorCode::corrupt, what + "; correct the key in the file");
    warnings.push_back(what + "; ignored");
    e.id->reset();
  }
  return {};
}

Status read_kinds(const GgufFile& file, Vocabulary& v) {
  ASSIGN_OR_RETURN(auto kinds, file.get_ints("tokenizer.ggml.token_type"));
  if (!kinds) return {};
  v.kinds.reserve(kinds->size());
  for (size_t i = 0; i < kinds->size(); ++i) {
    const int64_t kind = (*kinds)[i];
    if (kind < 0 || kind > 6) {
      return fail(ErrorCode::corrupt, "tokenizer.ggml.token_type[" + std::to_string(i) + "] = " + std::to_string(kind) +
                                          " is not a token type (1 to 6); the file is damaged");
    }
    v.kinds.push_back(kind == 0 ? TokenKind::normal : static_cast<TokenKind>(kind));  // 0: "undefined"
  }
  return {};
}

Status read_special_id(const GgufFile& file, std::string_view key, std::optional<TokenId>& id) {
  ASSIGN_OR_RETURN(auto value, file.get_int(key));
  // Too large for an id (0xFFFFFFFF is written for "none"): outside every vocabulary, judged with the rest.
  if (value) id = static_cast<TokenId>(std::clamp<int64_t>(*value, -1, std::numeric_limits<TokenId>::max()));
  return {};
}

Result<std::vector<std::string>> read_strings(const GgufFile& file, std::string_view key) {
  ASSIGN_OR_RETURN(auto values, file.get_strings(key));
  if (!values) {
    std::string what(key);
    what.append(" is missing from ").append(file.name());
    return fail(ErrorCode::corrupt, what.append("; a model without its tokenizer cannot read or write text"));
  }
  return std::vector<std::string>(values->begin(), values->end());
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const GgufFile& file) {
  Vocabulary v;
  ASSIGN_OR_RETURN(auto model, file.get_string("tokenizer.ggml.model"));
  if (!model) return fail(ErrorCode::corrupt, "tokenizer.ggml.model is missing from " + file.name());
  v.model = *model;
  ASSIGN_OR_RETURN(auto pre, file.get_string("tokenizer.ggml.pre"));
  if (pre) v.pre = *pre;
  ASSIGN_OR_RETURN(v.tokens, read_strings(file, "tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(auto scores, file.get_floats("tokenizer.ggml.scores"));
  if (scores) v.scores = std::move(*scores);
  RETURN_IF_ERROR(read_kinds(file, v));
  if (v.model == "gpt2") {
    ASSIGN_OR_RETURN(v.merges, read_strings(file, "tokenizer.ggml.merges"));
    if (v.merges.empty()) return fail(ErrorCode::corrupt, "tokenizer.ggml.merges is empty in " + file.name());
  }
  RETURN_IF_ERROR(read_special_id(file, "tokenizer.ggml.bos_token_id", v.bos));
  RETURN_IF_ERROR(read_special_id(file, "tokenizer.ggml.eos_token_id", v.eos));
  RETURN_IF_ERROR(read_special_id(file, "tokenizer.ggml.eot_token_id", v.eot));
  RETURN_IF_ERROR(read_special_id(file, "tokenizer.ggml.unknown_token_id", v.unk));
  RETURN_IF_ERROR(read_special_id(file, "tokenizer.ggml.padding_token_id", v.pad));
  ASSIGN_OR_RETURN(v.add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(v.add_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(v.add_space_prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  return from_vocabulary(std::move(v));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_vocabulary(Vocabulary v) {
  if (v.model != "gpt2" && v.model != "llama") {
    return fail(ErrorCode::unsupported,
                "tokenizer.ggml.model = " + quoted(v.model) + " is not built; gpt2 (byte-level BPE) and llama are");
  }
  RETURN_IF_ERROR(check_lengths(v));
  std::vector<std::string> warnings;
  RETURN_IF_ERROR(check_special_ids(v, warnings));
  if (v.model == "llama") return SpmTokenizer::create(std::move(v), std::move(warnings));
  return BpeTokenizer::create(std::move(v), std::move(warnings));
}

Tokenizer::Tokenizer(Vocabulary vocabulary, std::vector<std::string> warnings)
    : vocabulary_(std::move(vocabulary)), warnings_(std::move(warnings)), special_(std::make_unique<SpecialTokens>()) {
  ids_.reserve(size());
  // Tokens that text turns into first: they win over others of the same spelling.
  for (const bool text : {true, false}) {
    for (size_t i = 0; i < size(); ++i) {
      const TokenKind k = vocabulary_.kinds[i];
      if ((k == TokenKind::normal || k == TokenKind::user_defined) == text) {
        ids_.emplace(vocabulary_.tokens[i], static_cast<TokenId>(i));
      }
    }
  }
  const bool answer_parts = find("<|return|>").has_value();
  for (size_t i = 0; i < size(); ++i) {
    if (vocabulary_.kinds[i] != TokenKind::control) continue;
    const std::string& name = vocabulary_.tokens[i];
    if (std::find(kEndNames.begin(), kEndNames.end(), name) == kEndNames.end()) continue;
    if (name == "<|end|>" && answer_parts) continue;
    stop_ids_.push_back(static_cast<TokenId>(i));
  }
  for (const auto& id : {vocabulary_.eos, vocabulary_.eot}) {
    if (id) stop_ids_.push_back(*id);
  }
  std::sort(stop_ids_.begin(), stop_ids_.end());
  stop_ids_.erase(std::unique(stop_ids_.begin(), stop_ids_.end()), stop_ids_.end());
}

Tokenizer::~Tokenizer() = default;

void Tokenizer::add_special(TokenId id, bool always) {
  special_->add(vocabulary_.tokens[static_cast<size_t>(id)], id, always);
}

void Tokenizer::set_bos_default(bool bos_by_default) {
  wants_bos_ = vocabulary_.bos && vocabulary_.add_bos.value_or(bos_by_default);
  if (!vocabulary_.bos && vocabulary_.add_bos.value_or(false)) {
    warnings_.push_back("tokenizer.ggml.add_bos_token is true but bos_token_id is missing; no BOS is added");
  }
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::optional<TokenId> Tokenizer::find_text(std::string_view token) const {
  const auto id = find(token);
  if (!id || (kind(*id) != TokenKind::normal && kind(*id) != TokenKind::user_defined)) return std::nullopt;
  return id;
}

bool Tokenizer::is_control(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= size()) return false;
  return kind(id) == TokenKind::control || kind(id) == TokenKind::unknown;
}

bool Tokenizer::begins_with_bos(std::string_view text) const {
  if (!vocabulary_.bos) return false;
  const auto match =
      special_->find(text.substr(0, vocabulary_.tokens[static_cast<size_t>(*vocabulary_.bos)].size()), 0, true);
  return match && match->at == 0 && match->id == *vocabulary_.bos;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > size_t{std::numeric_limits<TokenId>::max()}) {
    return fail(ErrorCode::invalid_argument,
                "text of " + std::to_string(text.size()) + " bytes is longer than 2^31 - 1");
  }
  if (const auto bad = find_invalid_utf8(text)) {
    return fail(ErrorCode::invalid_argument,
                "text is not valid UTF-8 at byte " + std::to_string(*bad) + "; convert it to UTF-8 first");
  }
  std::vector<TokenId> ids;
  for (size_t at = 0; at < text.size();) {
    const auto match = special_->find(text, at, options.parse_special);
    const size_t end = match ? match->at : text.size();
    if (end > at) RETURN_IF_ERROR(encode_text(text.substr(at, end - at), ids));
    if (!match) break;
    ids.push_back(match->id);
    at = end + match->bytes;
  }
  if (options.add_bos && wants_bos_ && (ids.empty() || ids.front() != *vocabulary_.bos)) {
    ids.insert(ids.begin(), *vocabulary_.bos);
  }
  return ids;
}

std::string Tokenizer::piece(TokenId id, bool special) const {
  if (id < 0 || static_cast<size_t>(id) >= size()) return {};
  if (is_control(id) || kind(id) == TokenKind::unused) {
    return special ? vocabulary_.tokens[static_cast<size_t>(id)] : std::string();
  }
  return text_of(id);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool special) const {
  std::string out;
  bool at_start = drops_prefix_space_;
  for (TokenId id : ids) {
    std::string text = piece(id, special);
    if (at_start && !text.empty() && !is_control(id)) {
      if (text.front() == ' ') text.erase(0, 1);
      at_start = false;
    }
    out += text;
  }
  return out;
}

}  // namespace kvarto
