// Turns a stream of token pieces into text that is valid UTF-8 at every moment, and finds stop strings across pieces.
// Held back: an incomplete UTF-8 character (until it completes, or can no longer complete: then U+FFFD, following the
// "maximal subpart" practice of the Unicode standard), and the longest suffix that is a proper prefix of a stop string.
// The text that comes out depends on the bytes only, not on how they were cut into pieces.
// One object per generated sequence; single thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarto {

class StreamDecoder {
 public:
  // Stop strings: the match that is complete first wins, of several that end together the longest; the text is cut
  // before it (or after it, when `include_stop`). A stop string that is empty or not valid UTF-8 never matches.
  explicit StreamDecoder(std::vector<std::string> stops = {}, bool include_stop = false);

  // Adds the bytes of one token; returns the text that may be shown now (possibly empty). After stopped(), returns "".
  std::string push(std::string_view bytes);
  // The end of generation: flushes what was held (an unfinished character becomes U+FFFD).
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& stop_string() const { return stop_string_; }  // which one matched

 private:
  // A stop string and how much of it the text ends with (Knuth, Morris, Pratt).
  struct Stop {
    std::string text;
    std::vector<uint32_t> fallback;  // [i]: length of the longest proper prefix that is a suffix of text[0, i]
    uint32_t matched = 0;
    void advance(char c);
  };
  void decode(bool at_end, std::string& text);
  std::string release(const std::string& text, bool at_end);

  std::vector<Stop> stops_;
  bool include_stop_;
  bool stopped_ = false;
  std::string stop_string_;
  std::string pending_bytes_;  // unfinished UTF-8
  std::string held_;           // valid text that could begin a stop string
};

}  // namespace kvarto
