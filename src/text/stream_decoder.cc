#include "text/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace kvarto {

StreamDecoder::StreamDecoder(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  for (std::string& text : stops) {
    if (text.empty() || find_invalid_utf8(text)) continue;
    Stop stop{std::move(text), {0}};
    for (uint32_t i = 1, length = 0; i < stop.text.size(); ++i) {
      while (length > 0 && stop.text[i] != stop.text[length]) length = stop.fallback[length - 1];
      if (stop.text[i] == stop.text[length]) ++length;
      stop.fallback.push_back(length);
    }
    stops_.push_back(std::move(stop));
  }
}

// Only called while the string is not complete.
void StreamDecoder::Stop::advance(char c) {
  while (matched > 0 && text[matched] != c) matched = fallback[matched - 1];
  if (text[matched] == c) ++matched;
}

std::string StreamDecoder::push(std::string_view bytes) {
  if (stopped_) return {};
  pending_bytes_ += bytes;
  std::string text;
  decode(false, text);
  return release(text, false);
}

std::string StreamDecoder::finish() {
  if (stopped_) return {};
  std::string text;
  decode(true, text);
  return release(text, true);
}

// Moves the whole characters of pending_bytes_ to `text`, and what can never become one as U+FFFD.
void StreamDecoder::decode(bool at_end, std::string& text) {
  size_t at = 0;
  while (at < pending_bytes_.size()) {
    const Utf8Char c = read_utf8(pending_bytes_, at);
    if (c.kind == Utf8Char::Kind::incomplete && !at_end) break;
    if (c.kind == Utf8Char::Kind::valid) {
      text.append(pending_bytes_, at, c.bytes);
    } else {
      text += kReplacementCharacter;
    }
    at += c.bytes;
  }
  pending_bytes_.erase(0, at);
}

std::string StreamDecoder::release(const std::string& text, bool at_end) {
  for (char c : text) {
    held_ += c;
    const Stop* complete = nullptr;
    for (Stop& stop : stops_) {
      stop.advance(c);
      if (stop.matched < stop.text.size()) continue;
      if (complete == nullptr || stop.text.size() > complete->text.size()) complete = &stop;
    }
    if (complete == nullptr) continue;
    stopped_ = true;
    stop_string_ = complete->text;
    pending_bytes_.clear();
    if (!include_stop_) held_.resize(held_.size() - stop_string_.size());
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  if (!at_end) {
    for (const Stop& stop : stops_) keep = std::max<size_t>(keep, stop.matched);
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace kvarto
