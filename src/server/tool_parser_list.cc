#include "format/printable.h"
#include "server/tool_parser.h"

// A new format: its file, which defines ToolFormat NAME_tool_format(), and its line here.
#define KVARTO_TOOL_FORMATS(X) \
  X(hermes)                    \
  X(llama3_json)               \
  X(mistral)

namespace kvarto {

#define KVARTO_DECLARE(name) ToolFormat name##_tool_format();
KVARTO_TOOL_FORMATS(KVARTO_DECLARE)
#undef KVARTO_DECLARE

const std::vector<ToolFormat>& tool_formats() {
#define KVARTO_ROW(name) name##_tool_format(),
  static const std::vector<ToolFormat> kFormats = {KVARTO_TOOL_FORMATS(KVARTO_ROW)};
#undef KVARTO_ROW
  return kFormats;
}

Result<const ToolFormat*> find_tool_format(std::string_view name, std::string_view chat_template) {
  std::string known;
  for (const ToolFormat& format : tool_formats()) {
    if (format.name == name) return &format;
    known.append(format.name).append(", ");
    if (name != "auto") continue;
    for (const std::string_view sign : format.signs) {
      if (chat_template.find(sign) != std::string_view::npos) return &format;
    }
  }
  if (name == "auto") {
    return fail(ErrorCode::unsupported,
                "--tool-call-parser auto: the chat template shows no form of tool calls that is known; name one of " +
                    known.substr(0, known.size() - 2) + ", or leave the flag out");
  }
  return fail(ErrorCode::invalid_argument,
              "tool call parser " + kvarto::quoted(name) + " is not known; known are " + known + "auto");
}

}  // namespace kvarto
