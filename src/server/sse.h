// Bytes of server-sent events and of JSON strings, appended to a buffer: what every streamed token goes through. Free
// functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace kvarto {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

// One event; a line of `data` each, should it have several.
void append_sse_event(std::string& out, std::string_view data);

// `text` as the inside of a JSON string, without the quotes. Bytes that are no valid UTF-8 become U+FFFD.
void append_json_escaped(std::string& out, std::string_view text);
void append_json_string(std::string& out, std::string_view text);  // with quotes

}  // namespace kvarto
