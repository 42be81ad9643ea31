#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "text/unicode.h"

namespace kvarto {

namespace {

// The byte-level alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards, in order.
constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<char32_t, 256> make_symbols() {
  std::array<char32_t, 256> symbols{};
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) symbols[b] = is_printable(b) ? static_cast<char32_t>(b) : next++;
  return symbols;
}

constexpr std::array<char32_t, 256> kSymbols = make_symbols();

// The inverse; -1: not a symbol.
constexpr std::array<int16_t, 0x144> make_bytes() {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (int b = 0; b < 256; ++b) bytes[kSymbols[b]] = static_cast<int16_t>(b);
  return bytes;
}

constexpr std::array<int16_t, 0x144> kBytes = make_bytes();

size_t hash_pair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(pair ^ (pair >> 32));
}

uint64_t key_of(TokenId left, TokenId right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

std::string byte_symbols(std::string_view bytes) {
  std::string out;
  for (char c : bytes) append_utf8(out, kSymbols[static_cast<uint8_t>(c)]);
  return out;
}

struct BpeTokenizer::Work {
  struct Symbol {
    TokenId id;  // -1: merged into the one before
    int32_t previous, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t left;
    TokenId left_id, right_id;  // what stood there when it was found; anything else now means it is stale
    TokenId result;
    // The heap's top is the largest: lowest rank, then leftmost.
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

Result<std::shared_ptr<const Tokenizer>> BpeTokenizer::create(Vocabulary v, std::vector<std::string> warnings) {
  if (v.kinds.empty()) v.kinds.assign(v.tokens.size(), TokenKind::normal);
  if (v.pre.empty()) {
    warnings.push_back(
        "tokenizer.ggml.pre is missing; the pre-tokenizer \"default\" is used, which may split text unlike " +
        std::string("the model's own"));
  }
  ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::create(v.pre.empty() ? "default" : v.pre));
  std::shared_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(v), std::move(warnings), std::move(pre)));
  if (tokenizer->vocabulary_.merges.empty()) {
    tokenizer->rank_by_id();
  } else {
    RETURN_IF_ERROR(tokenizer->load_merges());
  }
  return tokenizer;
}

BpeTokenizer::BpeTokenizer(Vocabulary vocabulary, std::vector<std::string> warnings, PreTokenizer pre_tokenizer)
    : Tokenizer(std::move(vocabulary), std::move(warnings)), pre_tokenizer_(std::move(pre_tokenizer)) {
  set_bos_default(pre_tokenizer_.rules().bos_by_default);
  for (size_t i = 0; i < size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (is_control(id)) add_special(id, false);
    if (kind(id) == TokenKind::user_defined) add_special(id, true);
  }
  for (int b = 0; b < 256; ++b) {
    std::string symbol;
    append_utf8(symbol, kSymbols[b]);
    byte_ids_[b] = find_text(symbol).value_or(-1);
  }
}

Status BpeTokenizer::load_merges() {
  const std::vector<std::string>& merges = vocabulary_.merges;
  reserve_merges(merges.size());
  size_t ignored = 0;
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return fail(ErrorCode::corrupt, "tokenizer.ggml.merges[" + std::to_string(i) + "] = \"" + merges[i] +
                                          "\" is not two symbols; the file is damaged");
    }
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto left = find_text(merge.substr(0, space));
    const auto right = find_text(merge.substr(space + 1));
    const auto result = find_text(joined);
    if (left && right && result) {
      add_merge(*left, *right, {static_cast<uint32_t>(i), *result});
    } else {
      ++ignored;
    }
  }
  if (ignored > 0) {
    warnings_.push_back(std::to_string(ignored) + " of " + std::to_string(merges.size()) +
                        " merges name tokens that are not in the vocabulary; ignored");
  }
  return {};
}

void BpeTokenizer::rank_by_id() {
  struct Found {
    TokenId left, right, result;
  };
  std::vector<Found> found;
  for (size_t i = 0; i < size(); ++i) {
    const auto result = static_cast<TokenId>(i);
    if (kind(result) != TokenKind::normal) continue;
    const std::string_view token = vocabulary_.tokens[i];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = find_text(token.substr(0, cut));
      const auto right = left ? find_text(token.substr(cut)) : std::nullopt;
      if (right) found.push_back({*left, *right, result});
    }
  }
  reserve_merges(found.size());
  for (const Found& f : found) add_merge(f.left, f.right, {static_cast<uint32_t>(f.result), f.result});
}

void BpeTokenizer::reserve_merges(size_t count) { merges_.assign(std::bit_ceil(2 * count + 2), Slot{}); }

void BpeTokenizer::add_merge(TokenId left, TokenId right, Merge merge) {
  const uint64_t pair = key_of(left, right);
  size_t i = hash_pair(pair);
  for (;; ++i) {
    Slot& slot = merges_[i & (merges_.size() - 1)];
    if (slot.pair == pair) return;  // listed twice: the better rank stands
    if (slot.pair != kNoPair) continue;
    slot = {pair, merge};
    return;
  }
}

const BpeTokenizer::Merge* BpeTokenizer::find_merge(TokenId left, TokenId right) const {
  const uint64_t pair = key_of(left, right);
  for (size_t i = hash_pair(pair);; ++i) {
    const Slot& slot = merges_[i & (merges_.size() - 1)];
    if (slot.pair == pair) return &slot.merge;
    if (slot.pair == kNoPair) return nullptr;
  }
}

Status BpeTokenizer::encode_text(std::string_view text, std::vector<TokenId>& out) const {
  std::string normalised;
  if (pre_tokenizer_.rules().nfc) {
    ASSIGN_OR_RETURN(normalised, to_nfc(text));
    text = normalised;
  }
  ASSIGN_OR_RETURN(const auto pieces, pre_tokenizer_.split(text));
  Work work;
  for (std::string_view piece : pieces) encode_piece(piece, work, out);
  return {};
}

void BpeTokenizer::encode_piece(std::string_view piece, Work& work, std::vector<TokenId>& out) const {
  if (pre_tokenizer_.rules().ignore_merges) {
    if (const auto whole = find_text(byte_symbols(piece))) {
      out.push_back(*whole);
      return;
    }
  }
  auto& symbols = work.symbols;
  auto& heap = work.heap;
  symbols.clear();
  heap.clear();
  // Bytes without a token vanish before anything merges, as in the published tokenizers.
  for (char c : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
    const auto at = static_cast<int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto consider = [&](int32_t left) -> bool {
    const int32_t right = symbols[left].next;
    if (right < 0) return false;
    const Merge* merge = find_merge(symbols[left].id, symbols[right].id);
    if (merge) heap.push_back({merge->rank, left, symbols[left].id, symbols[right].id, merge->result});
    return merge != nullptr;
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Work::Candidate best = heap.back();
    heap.pop_back();
    Work::Symbol& left = symbols[best.left];
    if (left.id != best.left_id || left.next < 0 || symbols[left.next].id != best.right_id) continue;
    Work::Symbol& right = symbols[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    if (left.previous >= 0 && consider(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (consider(best.left)) std::push_heap(heap.begin(), heap.end());
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

std::string BpeTokenizer::text_of(TokenId id) const {
  const std::string& token = vocabulary_.tokens[static_cast<size_t>(id)];
  if (kind(id) == TokenKind::user_defined) return token;
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const Utf8Char c = read_utf8(token, at);
    const bool symbol = c.kind == Utf8Char::Kind::valid && c.code_point < kBytes.size() && kBytes[c.code_point] >= 0;
    if (!symbol) return token;  // an added token, stored as plain text
    out += static_cast<char>(kBytes[c.code_point]);
    at += c.bytes;
  }
  return out;
}

}  // namespace kvarto
