#include "server/access_log.h"

#include <cstdio>

#include "format/printable.h"

namespace kvarto {
namespace {

constexpr size_t kShownPath = 200, kShownLabel = 160;
constexpr int kClientGone = 499;  // nginx's

// For a quoted field: what reads the log finds the quote at its end.
std::string quotable(std::string_view text, size_t limit) {
  std::string shown = printable(text, limit);
  for (char& c : shown) {
    if (c == '"') c = '\'';
  }
  return shown;
}

}  // namespace

std::string access_line(const ServedRequest& request) {
  const std::string method = request.method.empty() ? "-" : quotable(request.method, 16);
  const std::string path = request.path.empty() ? "-" : quotable(request.path, kShownPath);
  char time[32];
  std::snprintf(time, sizeof time, "%.1f ms", static_cast<double>(request.time.count()) / 1000);
  std::string line = std::string(request.peer) + " - \"" + method + " " + path +
                     (request.http_1_0 ? " HTTP/1.0\" " : " HTTP/1.1\" ") +
                     std::to_string(request.status == 0 ? kClientGone : request.status) + ", " +
                     std::to_string(request.bytes) + " bytes, " + time;
  if (!request.label.empty()) line += ", " + printable(request.label, kShownLabel);
  if (!request.whole) line += ", cut short";
  return line;
}

}  // namespace kvarto
