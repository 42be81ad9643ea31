// The access log: a line per HTTP request, in the shape of uvicorn's with what it cost behind. The path is all of the
// request that it shows: no query, no header, no body. Pure function; any thread.
#pragma once

#include <string>

#include "http/server.h"

namespace kvarto {

// 127.0.0.1 - "POST /v1/completions HTTP/1.1" 200, 512 bytes, 34.1 ms, cmpl-1a2b
// A client that went before it had the whole reply has ", cut short" at the end; one that saw no status has 499.
std::string access_line(const ServedRequest& request);

}  // namespace kvarto
