// Text from a file, made fit for one line of an error message or a table: control characters and bytes that are no
// UTF-8 become \xNN, and what is longer than `limit` bytes is cut with "...". Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvarto {

std::string printable(std::string_view text, size_t limit = 80);
std::string quoted(std::string_view text, size_t limit = 80);  // the same in double quotes

}  // namespace kvarto
