#include "server/reasoning_parser.h"

#include <algorithm>
#include <utility>

#include "format/printable.h"

namespace kvarto {
namespace {

constexpr size_t kMaxSpace = 64;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view without_space_at_end(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

const std::vector<ReasoningFormat>& reasoning_formats() {
  static const std::vector<ReasoningFormat> kFormats = {
      {"deepseek_r1", "<think>", "</think>", true},
      {"qwen3", "<think>", "</think>", false},
      {"think", "<think>", "</think>", false},
      {"mistral", "[THINK]", "[/THINK]", false},
  };
  return kFormats;
}

Result<const ReasoningFormat*> find_reasoning_format(std::string_view name) {
  std::string known;
  for (const ReasoningFormat& format : reasoning_formats()) {
    if (format.name == name) return &format;
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  return fail(ErrorCode::invalid_argument,
              "reasoning parser " + kvarto::quoted(name) + " is not known; known are " + known);
}

ReasoningParser::ReasoningParser(const ReasoningFormat& format, std::string_view prompt)
    : format_(&format), at_(format.assumed ? At::opening : At::start) {
  const std::string_view end = without_space_at_end(prompt);
  if (end.ends_with(format.open)) at_ = At::opening;
  if (end.ends_with(format.close)) at_ = At::content;
}

ReasoningDelta ReasoningParser::push(std::string_view text) {
  for (const char c : text) take(c);
  return std::exchange(delta_, {});
}

ReasoningDelta ReasoningParser::finish() {
  const std::string held = std::exchange(held_, {});
  if (reasoning()) {
    at_ = At::inside;
    for (const char c : held) reason(c);
    if (any_reason_) delta_.reasoning += std::exchange(newlines_, {});
  } else {
    delta_.content += held;
  }
  return std::exchange(delta_, {});
}

void ReasoningParser::take(char c) {
  switch (at_) {
    case At::start:
    case At::opening:
      return before_text(c);
    case At::inside: {
      held_ += c;
      if (held_ == format_->close) {
        held_.clear();
        newlines_.clear();
        at_ = At::closed;
        return;
      }
      if (format_->close.starts_with(held_)) return;
      // A tag's first byte comes in it once, so that only c itself may begin the next one.
      std::string plain = std::exchange(held_, {});
      if (plain.size() > 1 && c == format_->close.front()) {
        plain.pop_back();
        held_ = c;
      }
      for (const char p : plain) reason(p);
      return;
    }
    case At::closed:
      if (c == '\n') return;
      at_ = At::content;
      [[fallthrough]];
    case At::content:
      delta_.content += c;
  }
}

void ReasoningParser::before_text(char c) {
  held_ += c;
  const auto begin = std::find_if_not(held_.begin(), held_.end(), is_space);
  const std::string_view tag(held_.data() + (begin - held_.begin()), static_cast<size_t>(held_.end() - begin));
  if (tag == format_->open) {
    held_.clear();
    at_ = At::inside;
    return;
  }
  if (format_->open.starts_with(tag) && held_.size() <= kMaxSpace) return;
  at_ = at_ == At::opening ? At::inside : At::content;
  for (const char plain : std::exchange(held_, {})) take(plain);
}

void ReasoningParser::reason(char c) {
  if (c == '\n') {
    if (any_reason_) newlines_ += c;
    if (newlines_.size() <= kMaxSpace) return;
  } else {
    any_reason_ = true;
  }
  delta_.reasoning += std::exchange(newlines_, {});
  if (c != '\n') delta_.reasoning += c;
}

}  // namespace kvarto
