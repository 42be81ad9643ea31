// Any text as a template, rendered with a fixed context: parse and render must end with text or an Error.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace {

const nlohmann::ordered_json& context() {
  static const auto* const kContext = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "h\u00e9 \ud83d\ude42"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]},
                 {"role": "user", "content": [{"type": "text", "text": "t"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "bos_token": "<s>", "add_generation_prompt": true, "n": 3, "x": [1, 2, [3]]})"));
  return *kContext;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvarto::jinja::Options options;
  options.limits.steps = 20'000;
  options.limits.memory_bytes = 8 << 20;
  options.limits.output_bytes = 1 << 20;
  options.limits.range_items = 1'000;
  try {
    auto tree = kvarto::jinja::parse(std::string_view(reinterpret_cast<const char*>(data), size));
    kvarto::jinja::render(*tree, context(), options);
  } catch (const kvarto::jinja::JinjaError&) {
  }
  return 0;
}
