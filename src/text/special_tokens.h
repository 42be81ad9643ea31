// Finds the spellings of special tokens in text: a byte trie. At each place the longest spelling wins, the leftmost
// place first, as in the published tokenizers. Filled once by the tokenizer that owns it, then read by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kvarto {

class SpecialTokens {
 public:
  struct Match {
    size_t at;
    size_t bytes;
    int32_t id;
  };

  SpecialTokens();
  // `always`: the spelling counts even where special tokens are not parsed. Of equal spellings the first one added
  // stays.
  void add(std::string_view spelling, int32_t id, bool always);
  // The first match at or after `from`. `parse_special` false: only spellings added with `always`.
  std::optional<Match> find(std::string_view text, size_t from, bool parse_special) const;

 private:
  struct Node {
    uint32_t first_child = 0;  // 0: none (the root is nobody's child)
    uint32_t next_sibling = 0;
    int32_t id = -1;  // -1: no spelling ends here
    uint8_t byte = 0;
    bool always = false;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> starts_{};  // child of the root by byte; 0: none
};

}  // namespace kvarto
