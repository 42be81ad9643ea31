#include "server/breakers.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "server/volatile_text.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 240;  // of a line
constexpr size_t kAlikeBytes = 8;    // that two prompts share by more than accident, where they share no block

// Where a message's content stands in the prompt.
struct Span {
  uint32_t index = 0;
  std::string role;
  size_t begin = 0, end = 0;
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Json array_of(std::string_view text) {
  if (text.empty()) return Json::array();
  auto parsed = parse_json(text);
  return parsed && parsed->is_array() ? *std::move(parsed) : Json::array();
}

std::string string_at(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// A message's content: one text, or those of its parts.
std::vector<std::string> contents_of(const Json& message) {
  const auto content = message.is_object() ? message.find("content") : message.end();
  if (content == message.end() || !content->is_array()) return {string_at(message, "content")};
  std::vector<std::string> texts;
  for (const Json& part : *content) texts.push_back(string_at(part, "text"));
  return texts;
}

// Looks for pieces of a text, each behind the one before. What is not there costs a pass over the rest of the text, so
// there is a limit to all passes together.
class ForwardSearch {
 public:
  explicit ForwardSearch(std::string_view text) : text_(text) {}

  size_t find(std::string_view wanted, size_t from) {
    if (over()) return std::string_view::npos;
    // Of long pieces the beginning is looked for, and only where that is first found the rest is compared.
    const size_t at = text_.find(wanted.substr(0, kKeyBytes), from);
    looked_at_ += std::min(at, text_.size()) - std::min(from, text_.size());
    return at != std::string_view::npos && text_.substr(at).starts_with(wanted) ? at : std::string_view::npos;
  }
  bool over() const { return looked_at_ > 4 * text_.size() + kMostBytes; }

 private:
  static constexpr size_t kKeyBytes = 64, kMostBytes = 64 << 20;

  std::string_view text_;
  size_t looked_at_ = 0;
};

// Contents are looked for one behind the other, each behind its role's name where the template shows that: a short
// content must not be found in the template's own words. What the template has changed is not found and has no span.
std::vector<Span> spans_of(std::string_view text, const Json& messages) {
  std::vector<Span> spans;
  ForwardSearch search(text);
  size_t from = 0;
  uint32_t index = 0;
  for (const Json& message : messages) {
    if (search.over()) break;
    const std::string role = string_at(message, "role");
    const uint32_t i = index++;
    size_t heading = role.empty() ? std::string_view::npos : search.find(role, from);
    for (const std::string& content : contents_of(message)) {
      const std::string_view wanted = trimmed(content);
      if (wanted.empty()) continue;
      size_t begin = heading == std::string_view::npos ? heading : search.find(wanted, heading + role.size());
      if (begin == std::string_view::npos) begin = search.find(wanted, from);
      if (begin == std::string_view::npos) continue;
      from = begin + wanted.size();
      if (!spans.empty() && spans.back().index == i) {
        spans.back().end = from;  // a further part
      } else {
        spans.push_back({i, role, begin, from});
      }
      heading = std::string_view::npos;
    }
  }
  return spans;
}

// The tool whose name is the last one that begins before `offset`, outside messages; templates show tools in order.
std::optional<uint32_t> tool_at(std::string_view text, const Json& tools, size_t offset, size_t from, size_t to) {
  std::optional<uint32_t> found;
  ForwardSearch search(text.substr(0, to));
  uint32_t index = 0;
  for (const Json& tool : tools) {
    const uint32_t i = index++;
    const bool wrapped = tool.is_object() && tool.contains("function");
    const std::string name = string_at(wrapped ? tool["function"] : tool, "name");
    if (name.empty()) continue;
    const size_t at = search.find(name, from);
    if (at == std::string_view::npos && !search.over()) continue;
    if (at > offset) break;  // as are all that follow
    found = i;
    from = at + name.size();
  }
  return found;
}

// A role is a word of the client's; only the usual ones are passed on.
std::string known_role(const std::string& role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
  return role.empty() || std::ranges::find(kRoles, role) != std::end(kRoles) ? role : "other";
}

// Where in its line a breaker begins: in front of the first word with a digit, or of the word in which the prompts
// part. Of two dates sometimes the day differs first, sometimes the year: the place is the same.
size_t word_begin(std::string_view text, const BrokenLine& line) {
  std::string_view shared = text.substr(line.line_begin, line.offset - line.line_begin);
  shared = shared.substr(0, shared.find_first_of("0123456789"));
  const size_t space = shared.rfind(' ');
  return line.line_begin + (space == std::string_view::npos ? 0 : space + 1);
}

std::string shortened(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  size_t size = kShownBytes;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;  // whole characters
  return std::string(text.substr(0, size)) + "\xe2\x80\xa6";
}

}  // namespace

std::string_view prompt_place_name(PromptPlace place) {
  switch (place) {
    case PromptPlace::prompt:
      return "prompt";
    case PromptPlace::tools:
      return "tools";
    case PromptPlace::template_text:
      return "template";
    case PromptPlace::message:
      return "message";
  }
  return "?";
}

BrokenLine locate_parting(std::string_view text, std::span<const size_t> ends, const PartedPrompt& parted) {
  const uint64_t position = std::min<uint64_t>(parted.near.position(), ends.size());
  const size_t offset = position == 0 ? 0 : ends[position - 1];
  const Json messages = array_of(parted.messages);
  const std::vector<Span> spans = spans_of(text, messages);
  BrokenLine line;
  line.offset = offset;
  size_t low = 0, high = text.size();  // of the place: lines end there
  size_t reusable = text.size();       // what lies behind is new in any case
  if (!messages.empty()) {
    line.place = PromptPlace::template_text;
    const auto next = std::ranges::find_if(spans, [&](const Span& span) { return span.begin > offset; });
    if (next != spans.end()) high = next->begin;
    if (next != spans.begin()) {
      const Span& span = *std::prev(next);
      // The first token behind a content may begin inside of it.
      if (offset < span.end) {
        line.place = PromptPlace::message;
        line.role = span.role;
        line.index = span.index;
        low = span.begin;
        high = span.end;
      } else {
        low = span.end;
      }
    }
    if (line.place == PromptPlace::template_text) {
      if (const auto tool = tool_at(text, array_of(parted.tools), offset, low, high)) {
        line.place = PromptPlace::tools;
        line.index = *tool;
      }
    }
    if (!spans.empty() && spans.back().index + 1 == messages.size()) reusable = spans.back().begin;
    line.usual = offset >= reusable;
  }
  // Every prompt shares the first token of a model that wants one, and every chat the template's heading.
  const size_t own = line.place == PromptPlace::message ? low : ends.empty() ? 0 : ends[0];
  if (parted.near.matched_tokens == 0 && offset < own + kAlikeBytes) line.usual = true;
  const size_t feed = offset == 0 ? std::string_view::npos : text.rfind('\n', offset - 1);
  line.line_begin = std::max(low, feed == std::string_view::npos ? 0 : feed + 1);
  line.line_end = std::min(high, text.find('\n', offset));
  line.part_begin = line.place == PromptPlace::message ? line.line_begin - low : line.line_begin;
  const auto end = std::ranges::upper_bound(ends, reusable);
  const auto reusable_tokens = static_cast<uint64_t>(end - ends.begin());
  line.lost_tokens = reusable_tokens > position ? reusable_tokens - position : 0;
  return line;
}

PrefixBreakers::PrefixBreakers(PrefixBreakerOptions options, Piece piece)
    : options_(std::move(options)), piece_(std::move(piece)) {}

bool PrefixBreakers::add(const PartedPrompt& parted) {
  std::string text;
  std::vector<size_t> ends;
  ends.reserve(parted.ids.size());
  for (const TokenId id : parted.ids) {
    text += piece_(id);
    ends.push_back(text.size());
  }
  BrokenLine place = locate_parting(text, ends, parted);
  const std::string_view line = std::string_view(text).substr(place.line_begin, place.line_end - place.line_begin);
  const std::string key = keyed_hash(std::string_view(text).substr(0, word_begin(text, place)));

  const std::scoped_lock lock(mutex_);
  ++near_misses_;
  if (place.usual) return false;
  ++seen_;
  if (!kept_.contains(key)) make_room();
  PrefixBreaker& breaker = kept_[key];
  breaker.place = place.place;
  breaker.role = known_role(place.role);
  breaker.index = place.index;
  ++breaker.count;
  breaker.lost_tokens += place.lost_tokens;
  breaker.position = parted.near.position();
  breaker.line_bytes = line.size();
  breaker.part_begin = place.part_begin;
  breaker.hash = keyed_hash(line).substr(0, 12);
  if (options_.keep_text) tell_text(breaker, line, parted.near);
  return true;
}

void PrefixBreakers::tell_text(PrefixBreaker& breaker, std::string_view line, const NearMiss& near) const {
  std::string shown = shortened(line);
  if (breaker.count > 1 && shown != breaker.line) breaker.earlier_line = std::exchange(breaker.line, {});
  breaker.line = std::move(shown);
  breaker.known_piece = piece_(near.known_token);
  // Only lines of a system prompt can be moved.
  const bool movable =
      breaker.place == PromptPlace::message && (breaker.role == "system" || breaker.role == "developer");
  if (!movable || line.size() > kShownBytes || breaker.earlier_line.empty()) return;
  if (auto rule = propose_rule(breaker.earlier_line, breaker.line)) breaker.rule = *std::move(rule);
}

std::string PrefixBreakers::keyed_hash(std::string_view text) const {
  Sha256 hash;
  hash.update(std::to_string(options_.secret.size()) + ":" + options_.secret);
  hash.update(text);
  return to_hex(hash.finish());
}

// What came once and cost little goes first, so that a stream of single accidents displaces no real breaker.
void PrefixBreakers::make_room() {
  while (!kept_.empty() && kept_.size() >= std::max<size_t>(options_.max_kept, 1)) {
    kept_.erase(std::ranges::min_element(
        kept_, {}, [](const auto& entry) { return std::pair(entry.second.count, entry.second.lost_tokens); }));
  }
}

std::vector<PrefixBreaker> PrefixBreakers::top(size_t most) const {
  std::vector<PrefixBreaker> out;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [key, breaker] : kept_) out.push_back(breaker);
  }
  std::ranges::sort(out, [](const PrefixBreaker& a, const PrefixBreaker& b) {
    return std::tie(b.lost_tokens, b.count, a.hash) < std::tie(a.lost_tokens, a.count, b.hash);
  });
  if (out.size() > most) out.resize(most);
  return out;
}

uint64_t PrefixBreakers::seen() const {
  const std::scoped_lock lock(mutex_);
  return seen_;
}

uint64_t PrefixBreakers::near_misses() const {
  const std::scoped_lock lock(mutex_);
  return near_misses_;
}

void PrefixBreakers::clear() {
  const std::scoped_lock lock(mutex_);
  kept_.clear();
}

}  // namespace kvarto
