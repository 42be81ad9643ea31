// Turns a stream of token pieces into text that is valid UTF-8 at every moment, and finds stop strings across pieces.
// Held back: an incomplete UTF-8 character (until it completes, or can no longer complete: then U+FFFD, following the
// "maximal subpart" practice of the Unicode standard), and the longest suffix that is a proper prefix of a stop string.
// One object per generated sequence; single thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvarto {

class StreamDecoder {
 public:
  // Stop strings: the earliest match in the text wins; the text is cut before it (or after it, when `include_stop`).
  explicit StreamDecoder(std::vector<std::string> stops = {}, bool include_stop = false);

  // Adds the bytes of one token; returns the text that may be shown now (possibly empty). After stopped(), returns "".
  std::string push(std::string_view bytes);
  // The end of generation: flushes what was held (an unfinished character becomes U+FFFD).
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& stop_string() const { return stop_string_; }  // which one matched

 private:
  std::string release(bool all);
  std::vector<std::string> stops_;
  bool include_stop_;
  bool stopped_ = false;
  std::string stop_string_;
  std::string pending_bytes_;  // unfinished UTF-8
  std::string held_;           // valid text that could begin a stop string
};

}  // namespace kvarto
