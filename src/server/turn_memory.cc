#include "server/turn_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/unicode.h"

namespace kvarto {
namespace {

// FNV-1a, because one pass over a text gives the hash of each of its beginnings. Texts are compared on every hit, so
// that a collision costs a hit and nothing else.
class PrefixHash {
 public:
  explicit PrefixHash(std::string_view scope) {
    for (size_t n = scope.size(), i = 0; i < sizeof n; ++i, n >>= 8) add(static_cast<char>(n & 0xFF));
    add(scope);
  }
  void add(std::string_view text) {
    for (const char c : text) add(c);
  }
  uint64_t value() const { return hash_; }

 private:
  void add(char c) { hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 0x100000001B3; }
  uint64_t hash_ = 0xCBF29CE484222325;
};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool continues_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

std::string without_spaces(std::string_view text) {
  std::string out(text);
  std::erase(out, ' ');
  return out;
}

// How many of the first tokens, which end at `ends`, lie in the first `limit` bytes and end between characters.
size_t whole_tokens(std::string_view text, const std::vector<size_t>& ends, size_t limit) {
  size_t count = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), limit) - ends.begin());
  while (count > 0 && ends[count - 1] < text.size() && continues_character(text[ends[count - 1]])) --count;
  return count;
}

}  // namespace

size_t TurnMemory::Chat::bytes() const {
  // The last: entries of places_ and lengths_ with their nodes, roughly.
  return sizeof(Chat) + 2 * scope.capacity() + text.capacity() + ids.capacity() * sizeof(TokenId) +
         marks.capacity() * sizeof(Mark) + marks.size() * 160;
}

TurnMemory::TurnMemory(TurnMemoryOptions options, Piece piece) : options_(options), piece_(std::move(piece)) {}

TurnMemory::Cut TurnMemory::cut(const TurnOutput& output) const {
  std::vector<size_t> ends;  // of the tokens that spell the text
  for (size_t at = 0; ends.size() < output.ids.size(); ends.push_back(at)) {
    const std::string piece = piece_(output.ids[ends.size()], true);
    if (!output.text.substr(at).starts_with(piece)) break;
    at += piece.size();
  }
  const size_t tokens = whole_tokens(output.text, ends, output.text.size());
  if (tokens == 0) return {};
  Cut made{.text = output.text.substr(0, ends[tokens - 1]), .ids = output.ids.first(tokens)};
  size_t word_end = made.text.size();
  while (word_end > 0 && is_space(output.text[word_end - 1])) --word_end;
  made.word_tokens = whole_tokens(output.text, ends, word_end);
  if (made.word_tokens > 0) made.word_end = ends[made.word_tokens - 1];
  return made;
}

void TurnMemory::remember(const Turn& turn) {
  if (options_.max_turns == 0) return;
  std::vector<Cut> cuts;
  for (const TurnOutput& output : turn.outputs) {
    if (const Cut one = cut(output); !one.text.empty()) cuts.push_back(one);
  }
  if (cuts.empty()) return;
  PrefixHash prompt_hash(turn.scope);
  prompt_hash.add(turn.prompt_text);

  // Spelling a prompt takes long; others need not wait for it. What was known before goes on being true of this prompt.
  Mark from{};
  {
    const std::scoped_lock lock(mutex_);
    if (const auto known = known_part(turn)) from = known->chat->marks[known->mark];
  }
  const bool sound = same_prompt(turn.prompt_text.substr(from.text_end), turn.prompt_ids.subspan(from.ids_end));

  const std::scoped_lock lock(mutex_);
  if (!sound) {
    counts_.refused += cuts.size();
    return;
  }
  auto known = known_part(turn);
  for (const Cut& one : cuts) {
    from = known ? known->chat->marks[known->mark] : Mark{};
    const Chats::iterator chat = chat_for(turn.scope, known);
    counts_.bytes -= chat->bytes();
    const size_t prompt_end = turn.prompt_text.size(), prompt_ids_end = turn.prompt_ids.size();
    chat->text.append(turn.prompt_text.substr(from.text_end)).append(one.text);
    chat->ids.insert(chat->ids.end(), turn.prompt_ids.begin() + static_cast<std::ptrdiff_t>(from.ids_end),
                     turn.prompt_ids.end());
    chat->ids.insert(chat->ids.end(), one.ids.begin(), one.ids.end());
    ++chat->turns;
    ++counts_.turns;
    PrefixHash hash = prompt_hash;
    hash.add(one.text.substr(0, one.word_end));
    if (one.word_tokens > 0 && one.word_tokens < one.ids.size()) {
      add_mark(chat, {prompt_end + one.word_end, prompt_ids_end + one.word_tokens, hash.value(), chat->turns});
    }
    hash.add(one.text.substr(one.word_end));
    add_mark(chat, {prompt_end + one.text.size(), prompt_ids_end + one.ids.size(), hash.value(), chat->turns});
    counts_.bytes += chat->bytes();
    while (counts_.turns > options_.max_turns || counts_.bytes > options_.max_bytes) {
      const auto last = std::prev(chats_.end());
      if (known && known->chat == last) known.reset();
      forget(last);
    }
  }
}

std::optional<TurnMemory::Place> TurnMemory::known_part(const Turn& turn) {
  const auto place = find(turn.scope, turn.prompt_text);
  if (!place) return std::nullopt;
  const size_t ids_end = place->chat->marks[place->mark].ids_end;
  if (ids_end > turn.prompt_ids.size()) return std::nullopt;
  const auto begin = place->chat->ids.begin();
  const bool same_ids = std::equal(begin, begin + static_cast<std::ptrdiff_t>(ids_end), turn.prompt_ids.begin());
  return same_ids ? place : std::nullopt;
}

TurnMemory::Chats::iterator TurnMemory::chat_for(std::string_view scope, const std::optional<Place>& known) {
  Chat fresh;
  fresh.scope = scope;
  if (known) {
    const Chats::iterator old = known->chat;
    const Mark mark = old->marks[known->mark];
    if (mark.turn == old->turns) {
      chats_.splice(chats_.begin(), chats_, old);
      counts_.bytes -= old->bytes();
      drop_marks(old, known->mark + 1);
      old->text.resize(mark.text_end);
      old->ids.resize(mark.ids_end);
      counts_.bytes += old->bytes();
      return old;
    }
    // Another answer to an earlier turn.
    fresh.text = old->text.substr(0, mark.text_end);
    fresh.ids.assign(old->ids.begin(), old->ids.begin() + static_cast<std::ptrdiff_t>(mark.ids_end));
    fresh.turns = mark.turn;
  }
  chats_.push_front(std::move(fresh));
  const Chats::iterator chat = chats_.begin();
  for (size_t i = 0; known && i <= known->mark; ++i) {
    add_mark(chat, known->chat->marks[i]);
  }
  counts_.turns += chat->turns;
  counts_.bytes += chat->bytes();
  return chat;
}

void TurnMemory::add_mark(Chats::iterator chat, const Mark& mark) {
  places_[mark.key] = {chat, chat->marks.size()};
  ++lengths_[chat->scope][mark.text_end];
  chat->marks.push_back(mark);
}

void TurnMemory::drop_marks(Chats::iterator chat, size_t from) {
  const auto lengths = lengths_.find(chat->scope);
  for (; chat->marks.size() > from; chat->marks.pop_back()) {
    const Mark& mark = chat->marks.back();
    const auto place = places_.find(mark.key);
    if (place != places_.end() && place->second.chat == chat && place->second.mark + 1 == chat->marks.size()) {
      places_.erase(place);
    }
    const auto length = lengths->second.find(mark.text_end);
    if (--length->second == 0) lengths->second.erase(length);
  }
  if (lengths != lengths_.end() && lengths->second.empty()) lengths_.erase(lengths);
}

void TurnMemory::forget(Chats::iterator chat) {
  counts_.turns -= chat->turns;
  counts_.bytes -= chat->bytes();
  drop_marks(chat, 0);
  chats_.erase(chat);
}

std::optional<TurnMemory::Place> TurnMemory::find(std::string_view scope, std::string_view text) {
  const auto lengths = lengths_.find(std::string(scope));
  if (lengths == lengths_.end()) return std::nullopt;
  PrefixHash hash(scope);
  std::vector<Place> found;  // ascending length
  size_t done = 0;
  for (const auto& [length, count] : lengths->second) {
    if (length > text.size()) break;
    hash.add(text.substr(done, length - done));
    done = length;
    const auto place = places_.find(hash.value());
    if (place != places_.end()) found.push_back(place->second);
  }
  for (auto place = found.rbegin(); place != found.rend(); ++place) {
    const Chat& chat = *place->chat;
    const size_t length = chat.marks[place->mark].text_end;
    if (chat.scope == scope && std::string_view(chat.text).substr(0, length) == text.substr(0, length)) return *place;
  }
  return std::nullopt;
}

std::optional<std::vector<TokenId>> TurnMemory::splice(std::string_view scope, std::string_view text,
                                                       const Encode& encode) {
  std::vector<TokenId> ids;
  size_t known = 0;
  {
    const std::scoped_lock lock(mutex_);
    ++counts_.lookups;
    const auto place = find(scope, text);
    if (!place) return std::nullopt;
    const Mark& mark = place->chat->marks[place->mark];
    known = mark.text_end;
    ids.assign(place->chat->ids.begin(), place->chat->ids.begin() + static_cast<std::ptrdiff_t>(mark.ids_end));
    chats_.splice(chats_.begin(), chats_, place->chat);
  }
  const size_t spliced = ids.size();
  bool sound = true;
  if (known < text.size()) {
    const auto rest = encode(text.substr(known));
    sound = rest && same_text(text.substr(known), *rest);
    if (sound) ids.insert(ids.end(), rest->begin(), rest->end());
  }
  const std::scoped_lock lock(mutex_);
  if (!sound) {
    ++counts_.refused;
    return std::nullopt;
  }
  ++counts_.hits;
  counts_.tokens_spliced += spliced;
  return ids;
}

std::string TurnMemory::spell(std::span<const TokenId> ids) const {
  std::string text;
  for (const TokenId id : ids) text += piece_(id, true);
  return text;
}

// Tokenizers may normalise, put a BOS in front, and spaces before stretches of text; nothing else may differ.
bool TurnMemory::same_prompt(std::string_view text, std::span<const TokenId> ids) const {
  const std::string plain = without_spaces(text);
  const auto normal = to_nfc(plain);
  const auto fits = [&](std::string_view spelled) { return spelled == plain || (normal && spelled == *normal); };
  const std::string spelled = without_spaces(spell(ids));
  if (fits(spelled)) return true;
  const bool begins_with_control = !ids.empty() && piece_(ids.front(), false).empty();
  return begins_with_control &&
         fits(std::string_view(spelled).substr(without_spaces(piece_(ids.front(), true)).size()));
}

// Tokenizers cut a text at control tokens and treat each stretch alone, so a rest that begins with one is cut as it
// would be behind the whole text. Any other must spell itself (a tokenizer may normalise), lest a space slips in.
bool TurnMemory::same_text(std::string_view text, std::span<const TokenId> ids) const {
  if (ids.empty()) return false;
  const std::string first = piece_(ids.front(), true);
  if (!first.empty() && piece_(ids.front(), false).empty() && text.starts_with(first)) return true;
  const std::string spelled = spell(ids);
  if (spelled == text) return true;
  const auto normal = to_nfc(text);
  return normal && spelled == *normal;
}

TurnMemoryCounts TurnMemory::counts() const {
  const std::scoped_lock lock(mutex_);
  TurnMemoryCounts counts = counts_;
  counts.chats = chats_.size();
  return counts;
}

}  // namespace kvarto
