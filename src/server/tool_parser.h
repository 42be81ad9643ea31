// ToolParser: finds the tool calls in a generated text while it is generated, and hands on what is no call as content.
// A format is one file, tool_parser_NAME.cc, and one line of tool_parser_list.cc.
//
// What comes out depends on the text alone, never on how it was cut into pieces: the deltas, joined, are what one push
// of the whole text gives. A call is held back until it is whole, or longer than `hold_bytes` and sound so far; then
// its arguments are handed on as they come, byte for byte as written. Held text that turns out to be no call is
// content, and nothing of it is lost. Once a call longer than that breaks, its arguments end there and the rest is
// content. White space (at most 64 bytes of it) directly before, between and after calls is dropped. One object per
// choice of a reply; single thread. Pieces must be valid UTF-8, as StreamDecoder gives them; deltas are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"
#include "server/call_object.h"

namespace kvarto {

struct ToolCallDelta {
  uint32_t index = 0;
  std::string id, name;   // in the first of a call only
  std::string arguments;  // a piece of a JSON object's text
};

struct AnswerDelta {
  std::string content;
  std::vector<ToolCallDelta> calls;  // ascending index
  bool empty() const { return content.empty() && calls.empty(); }
};

struct ToolCall {
  std::string id, name, arguments;
};

struct Answer {
  std::string content;
  std::vector<ToolCall> calls;
  void add(const AnswerDelta& delta);
};

struct ToolParserOptions {
  std::function<uint64_t()> random;  // for ids
  size_t hold_bytes = 512;
};

class ToolParser {
 public:
  virtual ~ToolParser() = default;
  AnswerDelta push(std::string_view text);
  AnswerDelta finish();                      // the text is over: what was held comes out
  uint32_t calls() const { return calls_; }  // begun so far

 protected:
  explicit ToolParser(ToolParserOptions options, uint32_t id_letters = 0);

  // --- what a format does with the next byte, after the object that it began, and when it starts over as plain text
  virtual void take(char c) = 0;
  virtual void after_call() = 0;
  virtual void restart() = 0;

  // --- what a format has
  void content(char c);
  // Compares what is held with `tags` while bytes come. The number of the tag that is whole now (it stays held), kPart
  // of one that may become so, kNone: what was held is content, and so is c unless it begins another tag. No tag holds
  // its first byte twice.
  static constexpr int kNone = -1, kPart = -2;
  int find_tag(char c, std::initializer_list<std::string_view> tags);
  void hold(char c) { held_ += c; }
  const std::string& held() const { return held_; }
  void drop_held() { held_.clear(); }
  bool held_too_much() const { return held_.size() >= options_.hold_bytes; }
  // What is held is no call: its first byte is content, the rest is taken again.
  void give_up();
  // The call's object; while there is one, its bytes go to feed().
  void begin_object(CallObject object) { object_ = std::move(object); }
  bool in_object() const { return object_.has_value(); }
  void feed(char c);
  bool after_a_call() const { return dropping_; }  // but for white space

 private:
  void begin_call();
  void more_arguments();
  void end_call();
  void release_space();
  std::string new_id();

  ToolParserOptions options_;
  const uint32_t id_letters_;  // 0: call_ and 24 letters
  AnswerDelta delta_;
  std::string held_;   // may belong to a call
  std::string space_;  // content, unless a call follows
  std::optional<CallObject> object_;
  bool begun_ = false;  // the object's call was handed on in part
  bool dropping_ = false;
  uint32_t calls_ = 0;
};

// A row of the list.
struct ToolFormat {
  std::string_view name;
  // Spellings of tokens that carry the format: the caller leaves them in the text where they are control tokens.
  std::vector<std::string_view> markers;
  std::vector<std::string_view> signs;  // a chat template that holds one of them asks for this format
  std::unique_ptr<ToolParser> (*make)(ToolParserOptions options);
};

const std::vector<ToolFormat>& tool_formats();
// By name, or "auto": by what the chat template contains. Errors list the known names.
Result<const ToolFormat*> find_tool_format(std::string_view name, std::string_view chat_template);

}  // namespace kvarto
