// Hermes and Qwen: <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them. A closing tag that is
// missing is not missed.
#include "server/tool_parser.h"

namespace kvarto {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

class Hermes final : public ToolParser {
 public:
  explicit Hermes(ToolParserOptions options) : ToolParser(std::move(options)) {}

 private:
  void take(char c) override {
    if (in_object()) return feed(c);
    if (in_tag_) return before_object(c);
    if (!after_a_call()) unclosed_ = false;
    const int tag = unclosed_ ? find_tag(c, {kOpen, kClose}) : find_tag(c, {kOpen});
    if (tag == 0) in_tag_ = true;
    if (tag == 1) {
      drop_held();
      unclosed_ = false;
    }
  }

  void before_object(char c) {
    if (c == '{') {
      begin_object(CallObject(false));
      feed(c);
    } else if (is_json_space(c) && !held_too_much()) {
      hold(c);
    } else {
      give_up();
      take(c);
    }
  }
  void after_call() override {
    in_tag_ = false;
    unclosed_ = true;
  }
  void restart() override { in_tag_ = unclosed_ = false; }

  bool in_tag_ = false;    // between the opening tag and the object
  bool unclosed_ = false;  // a call's closing tag may follow
};

}  // namespace

ToolFormat hermes_tool_format() {
  return {"hermes", {kOpen, kClose}, {kOpen}, [](ToolParserOptions options) -> std::unique_ptr<ToolParser> {
            return std::make_unique<Hermes>(std::move(options));
          }};
}

}  // namespace kvarto
