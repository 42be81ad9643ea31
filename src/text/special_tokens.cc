#include "text/special_tokens.h"

namespace kvarto {

SpecialTokens::SpecialTokens() : nodes_(1) {}

uint32_t SpecialTokens::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return starts_[byte];
  uint32_t next = nodes_[node].first_child;
  while (next != 0 && nodes_[next].byte != byte) next = nodes_[next].next_sibling;
  return next;
}

void SpecialTokens::add(std::string_view spelling, int32_t id, bool always) {
  if (spelling.empty()) return;
  uint32_t node = 0;
  for (char c : spelling) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      Node fresh;
      fresh.byte = byte;
      fresh.next_sibling = nodes_[node].first_child;
      nodes_.push_back(fresh);
      nodes_[node].first_child = next;
      if (node == 0) starts_[byte] = next;
    }
    node = next;
  }
  if (nodes_[node].id >= 0) return;
  nodes_[node].id = id;
  nodes_[node].always = always;
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, size_t from, bool parse_special) const {
  if (nodes_.size() == 1) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    uint32_t node = starts_[static_cast<uint8_t>(text[at])];
    Match match{at, 0, -1};
    for (size_t end = at + 1; node != 0; ++end) {
      const Node& n = nodes_[node];
      if (n.id >= 0 && (parse_special || n.always)) match = {at, end - at, n.id};
      if (end == text.size()) break;
      node = child(node, static_cast<uint8_t>(text[end]));
    }
    if (match.id >= 0) return match;
  }
  return std::nullopt;
}

}  // namespace kvarto
