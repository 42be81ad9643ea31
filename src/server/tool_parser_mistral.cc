// Mistral: [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...], and of newer models [TOOL_CALLS]f{...}, repeated,
// with [ARGS] or [CALL_ID]x[ARGS] between name and arguments. Ids are nine letters and digits, as its templates demand.
#include "server/tool_parser.h"

namespace kvarto {
namespace {

constexpr std::string_view kCalls = "[TOOL_CALLS]", kArguments = "[ARGS]", kCallId = "[CALL_ID]";

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':' || c == '/';
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

// What stands between [TOOL_CALLS] and the arguments; empty: not a name.
std::string_view read_name(std::string_view head) {
  head = trim(head);
  if (head.ends_with(kArguments)) head.remove_suffix(kArguments.size());
  head = trim(head.substr(0, head.find(kCallId)));
  for (const char c : head) {
    if (!is_name_byte(c)) return {};
  }
  return head;
}

class Mistral final : public ToolParser {
 public:
  explicit Mistral(ToolParserOptions options) : ToolParser(std::move(options), 9) {}

 private:
  enum class At : uint8_t {
    text,
    tagged,   // after [TOOL_CALLS]
    name,     // in what is between it and the arguments
    element,  // of the list a call must follow
    called,   // in the list after a call
  };

  void take(char c) override {
    if (in_object()) return feed(c);
    switch (at_) {
      case At::text:
        if (find_tag(c, {kCalls}) == 0) at_ = At::tagged;
        return;
      case At::called:
        if (is_json_space(c)) return;
        if (c == ',') {
          at_ = At::element;
          return hold(c);
        }
        at_ = At::text;
        if (c != ']') take(c);
        return;
      default:
        return before_object(c);
    }
  }

  void before_object(char c) {
    const bool space = is_json_space(c);
    bool sound = !held_too_much();
    if (c == '{' && sound) {
      if (at_ != At::name) {
        in_list_ = at_ == At::element;
        begin_object(CallObject(false));
        return feed(c);
      }
      in_list_ = false;
      const std::string_view name = read_name(std::string_view(held()).substr(kCalls.size()));
      if (!name.empty()) {
        begin_object(CallObject(std::string(name)));
        return feed(c);
      }
      sound = false;
    } else if (at_ == At::tagged && !space) {
      sound = sound && (c == '[' || is_name_byte(c));
      at_ = c == '[' ? At::element : At::name;
    } else if (at_ == At::name) {
      sound = sound && (space || c == '[' || c == ']' || is_name_byte(c));
    } else {
      sound = sound && space;
    }
    if (sound) return hold(c);
    give_up();
    take(c);
  }

  void after_call() override { at_ = in_list_ ? At::called : At::text; }
  void restart() override { at_ = At::text; }

  At at_ = At::text;
  bool in_list_ = false;
};

}  // namespace

ToolFormat mistral_tool_format() {
  return {
      "mistral", {kCalls, kArguments, kCallId}, {kCalls}, [](ToolParserOptions options) -> std::unique_ptr<ToolParser> {
        return std::make_unique<Mistral>(std::move(options));
      }};
}

}  // namespace kvarto
