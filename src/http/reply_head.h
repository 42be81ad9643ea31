// Status line and headers of a reply as bytes. Plain functions; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "http/server.h"

namespace kvarto {

enum class Framing { none, length, chunked, until_close };

// What would break out of its line (CR, LF, NUL) becomes a space in values; a header whose name is no token, and those
// that the server sets itself, are left out. `connection`: value of that header, empty: none.
void append_reply_head(std::string& out, const ServerReply& reply, Framing framing, uint64_t length,
                       std::string_view connection, std::string_view date);
bool status_has_body(int status);
bool asks_to_close(const ServerReply& reply);

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string http_date(std::chrono::system_clock::time_point time);

}  // namespace kvarto
