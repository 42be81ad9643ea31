// ReasoningParser: splits what a model thinks aloud, <think> ... </think>, from its answer while both are generated.
// The split depends on the text alone, never on how it was cut into pieces. Newlines directly inside the tags and after
// the closing one belong to neither part. The content goes on to a ToolParser where there is one. One object per choice
// of a reply; single thread. Pieces must be valid UTF-8; deltas are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

// A row of the list in reasoning_parser.cc. The tags' spellings must be left in the text where they are control tokens.
struct ReasoningFormat {
  std::string_view name, open, close;
  bool assumed;  // an answer is reasoning until the closing tag, also where no opening one was seen
};

const std::vector<ReasoningFormat>& reasoning_formats();
Result<const ReasoningFormat*> find_reasoning_format(std::string_view name);  // the error lists the known names

struct ReasoningDelta {
  std::string reasoning, content;
  bool empty() const { return reasoning.empty() && content.empty(); }
};

class ReasoningParser {
 public:
  // `prompt` is the rendered one: its end may have opened the reasoning, or closed it already.
  ReasoningParser(const ReasoningFormat& format, std::string_view prompt);

  ReasoningDelta push(std::string_view text);
  ReasoningDelta finish();
  bool reasoning() const { return at_ == At::opening || at_ == At::inside; }  // no end was seen yet

 private:
  enum class At : uint8_t {
    start,    // nothing but white space so far: an opening tag counts
    opening,  // inside, but an opening tag may still be written
    inside,
    closed,  // newlines after the closing tag
    content,
  };
  void take(char c);
  void before_text(char c);
  void reason(char c);

  const ReasoningFormat* format_;
  At at_;
  ReasoningDelta delta_;
  std::string held_;         // may become a tag
  std::string newlines_;     // of the reasoning, unless its end follows
  bool any_reason_ = false;  // leading newlines are over
};

}  // namespace kvarto
