// The program's two voices: results on stdout, everything else on stderr. Main thread.
#pragma once

#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

// Writes to stdout at once. A reader that has gone (a closed pipe) is an error without a message.
Status put(std::string_view text);
// One line on stderr, whatever names and texts of others are in it: control characters and bytes that are no UTF-8
// become \xNN.
void note(std::string_view text);
void note_lines(std::string_view text);  // the same for text of several lines
bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

// "1.5 GB", "12.0 MB", "640 B": decimal units.
std::string human_bytes(double bytes);

}  // namespace kvarto
