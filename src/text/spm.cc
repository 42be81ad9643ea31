#include "text/spm.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/unicode.h"

namespace kvarto {

namespace {

constexpr std::string_view kSpace = "\u2581";

std::string with_marked_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (char c : text) {
    if (c == ' ') {
      out += kSpace;
    } else {
      out += c;
    }
  }
  return out;
}

std::string with_plain_spaces(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool space = text.substr(at, kSpace.size()) == kSpace;
    out += space ? ' ' : text[at];
    at += space ? kSpace.size() : 1;
  }
  return out;
}

// The byte that "<0xNN>" names.
std::optional<uint8_t> named_byte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<uint8_t>(value);
}

// Where the next word begins: the first mark after `from` that follows something else.
size_t next_word(std::string_view text, size_t from) {
  for (size_t at = text.find(kSpace, from); at != std::string_view::npos; at = text.find(kSpace, at + kSpace.size())) {
    const bool run = at >= from + kSpace.size() && text.substr(at - kSpace.size(), kSpace.size()) == kSpace;
    if (at > from && !run) return at;
  }
  return text.size();
}

}  // namespace

struct SpmTokenizer::Work {
  struct Symbol {
    uint32_t at, bytes;  // 0 bytes: merged into the one before
    int32_t previous, next;
  };
  struct Candidate {
    float score;
    int32_t left;
    uint32_t bytes;  // of both when it was found; anything else now means it is stale
    // The heap's top is the largest: highest score, then leftmost.
    bool operator<(const Candidate& o) const { return score != o.score ? score < o.score : left > o.left; }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

Result<std::shared_ptr<const Tokenizer>> SpmTokenizer::create(Vocabulary v, std::vector<std::string> warnings) {
  for (size_t i = 0; i < v.scores.size(); ++i) {
    if (!std::isnan(v.scores[i])) continue;
    return fail(ErrorCode::corrupt,
                "tokenizer.ggml.scores[" + std::to_string(i) + "] is not a number; the file is damaged");
  }
  if (v.kinds.empty()) {
    v.kinds.reserve(v.tokens.size());
    for (const std::string& token : v.tokens) {
      v.kinds.push_back(named_byte(token) ? TokenKind::byte : TokenKind::normal);
    }
  }
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (v.kinds[i] != TokenKind::byte || named_byte(v.tokens[i])) continue;
    return fail(ErrorCode::corrupt, "tokenizer.ggml.tokens[" + std::to_string(i) + "] = \"" + v.tokens[i] +
                                        "\" is of type byte but is not spelled <0xNN>; the file is damaged");
  }
  return std::shared_ptr<const Tokenizer>(new SpmTokenizer(std::move(v), std::move(warnings)));
}

SpmTokenizer::SpmTokenizer(Vocabulary vocabulary, std::vector<std::string> warnings)
    : Tokenizer(std::move(vocabulary), std::move(warnings)) {
  set_bos_default(true);
  space_prefix_ = vocabulary_.add_space_prefix.value_or(true);
  drops_prefix_space_ = space_prefix_;
  byte_ids_.fill(-1);
  for (size_t i = 0; i < size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& token = vocabulary_.tokens[i];
    if (is_control(id)) add_special(id, false);
    if (kind(id) == TokenKind::user_defined) user_defined_.add(with_marked_spaces(token), id, true);
    if (kind(id) == TokenKind::byte) {
      TokenId& slot = byte_ids_[*named_byte(token)];
      if (slot < 0) slot = id;
    }
    const bool text = kind(id) == TokenKind::normal || kind(id) == TokenKind::user_defined;
    if (text && next_word(token, 0) != token.size()) words_are_separate_ = false;
  }
}

Status SpmTokenizer::encode_text(std::string_view text, std::vector<TokenId>& out) const {
  std::string marked = space_prefix_ ? std::string(kSpace) : std::string();
  marked += with_marked_spaces(text);
  const std::string_view all = marked;
  Work work;
  for (size_t at = 0; at < all.size();) {
    const auto match = user_defined_.find(all, at, true);
    const size_t end = match ? match->at : all.size();
    encode_words(all.substr(at, end - at), work, out);
    if (!match) break;
    out.push_back(match->id);
    at = end + match->bytes;
  }
  return {};
}

void SpmTokenizer::encode_words(std::string_view text, Work& work, std::vector<TokenId>& out) const {
  for (size_t at = 0; at < text.size();) {
    const size_t end = words_are_separate_ ? next_word(text, at) : text.size();
    merge(text.substr(at, end - at), work, out);
    at = end;
  }
}

void SpmTokenizer::merge(std::string_view text, Work& work, std::vector<TokenId>& out) const {
  auto& symbols = work.symbols;
  auto& heap = work.heap;
  symbols.clear();
  heap.clear();
  for (size_t at = 0; at < text.size();) {
    const uint8_t bytes = read_utf8(text, at).bytes;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(at), bytes, index - 1, index + 1});
    at += bytes;
  }
  symbols.back().next = -1;

  const auto consider = [&](int32_t left) -> bool {
    const int32_t right = symbols[left].next;
    if (right < 0) return false;
    const uint32_t bytes = symbols[left].bytes + symbols[right].bytes;
    const auto id = find_text(text.substr(symbols[left].at, bytes));
    if (id) heap.push_back({vocabulary_.scores[static_cast<size_t>(*id)], left, bytes});
    return id.has_value();
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Work::Candidate best = heap.back();
    heap.pop_back();
    Work::Symbol& left = symbols[best.left];
    if (left.bytes == 0 || left.next < 0 || left.bytes + symbols[left.next].bytes != best.bytes) continue;
    Work::Symbol& right = symbols[left.next];
    left.bytes = best.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    if (left.previous >= 0 && consider(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (consider(best.left)) std::push_heap(heap.begin(), heap.end());
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) emit(text.substr(symbols[i].at, symbols[i].bytes), out);
}

void SpmTokenizer::emit(std::string_view symbol, std::vector<TokenId>& out) const {
  if (const auto id = find_text(symbol)) {
    out.push_back(*id);
    return;
  }
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (std::all_of(symbol.begin(), symbol.end(), [&](char c) { return byte_id(c) >= 0; })) {
    for (char c : symbol) out.push_back(byte_id(c));
  } else if (vocabulary_.unk) {
    out.push_back(*vocabulary_.unk);
  }
}

std::string SpmTokenizer::text_of(TokenId id) const {
  const std::string& token = vocabulary_.tokens[static_cast<size_t>(id)];
  if (kind(id) == TokenKind::byte) return std::string(1, static_cast<char>(*named_byte(token)));
  return with_plain_spaces(token);
}

}  // namespace kvarto
