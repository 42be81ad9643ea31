// Llama 3: the answer is {"name": "f", "parameters": {...}}, or several separated by ';', perhaps after <|python_tag|>,
// which also introduces a call after other text.
#include "server/tool_parser.h"

namespace kvarto {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";

class Llama3Json final : public ToolParser {
 public:
  explicit Llama3Json(ToolParserOptions options) : ToolParser(std::move(options)) {}

 private:
  enum class At : uint8_t {
    start,      // nothing but white space so far
    tagged,     // after the tag
    called,     // after a call
    separated,  // after the ';' behind a call
    text,
  };

  void take(char c) override {
    if (in_object()) return feed(c);
    const bool space = is_json_space(c);
    if (c == '{' && (at_ == At::start || at_ == At::tagged || at_ == At::separated)) {
      begin_object(CallObject(true));
      return feed(c);
    }
    if (at_ == At::tagged || at_ == At::separated) {
      if (space && !held_too_much()) return hold(c);
      give_up();
      return take(c);
    }
    if (at_ == At::called && c == ';') {
      at_ = At::separated;
      return hold(c);
    }
    if (!space) at_ = At::text;
    if (find_tag(c, {kTag}) == 0) at_ = At::tagged;
  }
  void after_call() override { at_ = At::called; }
  void restart() override { at_ = At::text; }

  At at_ = At::start;
};

}  // namespace

ToolFormat llama3_json_tool_format() {
  return {"llama3_json",
          {kTag},
          {kTag, "Environment: ipython"},
          [](ToolParserOptions options) -> std::unique_ptr<ToolParser> {
            return std::make_unique<Llama3Json>(std::move(options));
          }};
}

}  // namespace kvarto
