#include "http/reply_head.h"

#include <algorithm>
#include <array>
#include <boost/beast/http/status.hpp>
#include <cstdio>
#include <ctime>

#include "base/ascii.h"

namespace kvarto {
namespace {

bool is_token(std::string_view name) {
  constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           marks.find(c) != std::string_view::npos;
  });
}

bool is_ours(std::string_view name) {
  for (const std::string_view ours : {"Date", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive"}) {
    if (equal_ignoring_case(name, ours)) return true;
  }
  return false;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  out += "\r\n";
}

}  // namespace

bool status_has_body(int status) { return status != 204 && status != 304; }

bool asks_to_close(const ServerReply& reply) {
  return std::any_of(reply.headers.begin(), reply.headers.end(), [](const HttpHeader& header) {
    return equal_ignoring_case(header.name, "Connection") && equal_ignoring_case(header.value, "close");
  });
}

void append_reply_head(std::string& out, const ServerReply& reply, Framing framing, uint64_t length,
                       std::string_view connection, std::string_view date) {
  const int status = reply.status >= 200 && reply.status <= 999 ? reply.status : 500;
  const auto reason = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  out += "HTTP/1.1 " + std::to_string(status) + " ";
  out.append(reason.data(), reason.size()).append("\r\n");
  append_header(out, "Date", date);
  for (const HttpHeader& header : reply.headers) {
    if (is_token(header.name) && !is_ours(header.name)) append_header(out, header.name, header.value);
  }
  if (framing == Framing::length) append_header(out, "Content-Length", std::to_string(length));
  if (framing == Framing::chunked) append_header(out, "Transfer-Encoding", "chunked");
  if (!connection.empty()) append_header(out, "Connection", connection);
  out += "\r\n";
}

std::string http_date(std::chrono::system_clock::time_point time) {
  constexpr std::array<const char*, 7> days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> months = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                days[static_cast<size_t>(parts.tm_wday)], parts.tm_mday, months[static_cast<size_t>(parts.tm_mon)],
                parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return text.data();
}

}  // namespace kvarto
