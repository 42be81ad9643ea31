#include "cli/load_trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kMostTokens = 100'000'000;
constexpr std::string_view kCsvHead = "TIMESTAMP,ContextTokens,GeneratedTokens";

tl::unexpected<Error> bad_line(size_t number, const std::string& what) {
  return fail(ErrorCode::corrupt, "line " + std::to_string(number) + " of the trace: " + what);
}

Result<uint32_t> read_tokens(const Json& line, const char* name, size_t number) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number_unsigned() || found->get<uint64_t>() > kMostTokens) {
    return bad_line(number, std::string(name) + " must be a whole number up to 100,000,000");
  }
  return found->get<uint32_t>();
}

Result<uint64_t> read_block(const Json& id, size_t number) {
  if (id.is_number_unsigned()) return id.get<uint64_t>();
  if (id.is_number_integer()) return static_cast<uint64_t>(id.get<int64_t>());
  if (!id.is_string()) return bad_line(number, "hash_ids must be numbers or strings");
  Sha256 hash;
  hash.update(id.get_ref<const std::string&>());
  return event_id(hash.finish());
}

// What the lines say of their blocks, and what is to be believed.
struct BlockSize {
  uint32_t tokens = 0;                // 0: not known yet
  bool given = false;                 // by whoever reads the trace: lines are not asked
  std::optional<uint32_t> said = {};  // by the line before; none: it said nothing
  bool any = false;                   // there was a line before
};

// Ids of blocks of two sizes have nothing to do with each other. Lines without ids need no size.
Status note_block_size(const Json& line, bool blocks, size_t number, BlockSize& size) {
  if (size.given || !blocks) return {};
  std::optional<uint32_t> said;
  if (const auto found = line.find("block_size"); found != line.end()) {
    ASSIGN_OR_RETURN(said, read_tokens(line, "block_size", number));
  }
  const auto words = [](std::optional<uint32_t> tokens) {
    return tokens ? "block_size " + std::to_string(*tokens) : std::string("no block_size");
  };
  if (std::exchange(size.any, true) && said != size.said) {
    return bad_line(number, "has " + words(said) + " where the lines before have " + words(size.said) +
                                "; split the file there, or say with --trace-block which one holds for all");
  }
  size.said = said;
  if (said) size.tokens = *said;
  return {};
}

Result<TraceRequest> read_json(std::string_view text, size_t number, BlockSize& block_size) {
  const Result<Json> line = parse_json(text);
  if (!line || !line->is_object()) return bad_line(number, "no JSON object: " + kvarto::quoted(text, 60));
  TraceRequest request;
  const auto time = line->find("timestamp");
  if (time == line->end() || !time->is_number()) return bad_line(number, "timestamp must be a number (milliseconds)");
  request.arrival_s = time->get<double>() / 1000;
  ASSIGN_OR_RETURN(request.input_tokens, read_tokens(*line, "input_length", number));
  ASSIGN_OR_RETURN(request.output_tokens, read_tokens(*line, "output_length", number));
  if (const auto ids = line->find("hash_ids"); ids != line->end() && ids->is_array()) {
    for (const Json& id : *ids) {
      ASSIGN_OR_RETURN(request.blocks.emplace_back(), read_block(id, number));
    }
  }
  RETURN_IF_ERROR(note_block_size(*line, !request.blocks.empty(), number, block_size));
  return request;
}

template <typename T>
bool read_whole(std::string_view text, T& out) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && rest == text.data() + text.size();
}

// "2023-11-16 18:17:03.9799600", as seconds since 1970.
std::optional<double> read_date(std::string_view text) {
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[10] != ' ' || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  int year = 0;
  unsigned month = 0, day = 0, hour = 0, minute = 0, second = 0;
  const bool whole = read_whole(text.substr(0, 4), year) && read_whole(text.substr(5, 2), month) &&
                     read_whole(text.substr(8, 2), day) && read_whole(text.substr(11, 2), hour) &&
                     read_whole(text.substr(14, 2), minute) && read_whole(text.substr(17, 2), second);
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month), std::chrono::day(day)};
  double fraction = 0;
  if (!whole || !date.ok() || (text.size() > 19 && !read_whole(text.substr(19), fraction))) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86400 + hour * 3600 + minute * 60 + second + fraction;
}

Result<TraceRequest> read_csv(std::string_view text, size_t number) {
  const size_t first = text.find(','), second = text.find(',', std::min(first, text.size() - 1) + 1);
  TraceRequest request;
  const std::optional<double> time = read_date(text.substr(0, first));
  if (!time || second == std::string_view::npos ||
      !read_whole(text.substr(first + 1, second - first - 1), request.input_tokens) ||
      !read_whole(text.substr(second + 1), request.output_tokens) || request.input_tokens > kMostTokens ||
      request.output_tokens > kMostTokens) {
    return bad_line(number, kvarto::quoted(text, 60) + " is not date and time, ContextTokens, GeneratedTokens");
  }
  request.arrival_s = *time;
  return request;
}

// The size with which every request has as many ids as its blocks, the last one counted or not when it is not full.
Result<uint32_t> find_block_size(const std::vector<TraceRequest>& requests) {
  for (const uint32_t size : {16u, 32u, 64u, 128u, 256u, 512u, 1024u, 2048u}) {
    const bool fits = std::ranges::all_of(requests, [&](const TraceRequest& request) {
      const size_t full = request.input_tokens / size, partial = request.input_tokens % size == 0 ? 0 : 1;
      return request.blocks.size() == full || request.blocks.size() == full + partial;
    });
    if (fits) return size;
  }
  return fail(ErrorCode::corrupt,
              "no block size makes the trace's hash_ids agree with its input_length; give --trace-block");
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, uint32_t block_tokens) {
  if (text.starts_with("\x1f\x8b")) {
    return fail(ErrorCode::unsupported, "the trace is packed by gzip; use `zcat FILE | kvarto bench serve --trace -`");
  }
  Trace trace;
  BlockSize size{.tokens = block_tokens, .given = block_tokens > 0};
  const bool csv = text.starts_with(kCsvHead);
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (line.empty() || (csv && number == 1)) continue;
    ASSIGN_OR_RETURN(trace.requests.emplace_back(), csv ? read_csv(line, number) : read_json(line, number, size));
  }
  trace.block_tokens = size.tokens;
  if (trace.requests.empty()) return fail(ErrorCode::corrupt, "the trace has no requests");
  std::ranges::stable_sort(trace.requests, {}, &TraceRequest::arrival_s);
  const double begin = trace.requests.front().arrival_s;
  for (TraceRequest& request : trace.requests) request.arrival_s -= begin;
  const bool blocks = std::ranges::any_of(trace.requests, [](const TraceRequest& r) { return !r.blocks.empty(); });
  if (!blocks) {
    trace.block_tokens = 0;
  } else if (trace.block_tokens == 0) {
    ASSIGN_OR_RETURN(trace.block_tokens, find_block_size(trace.requests));
  }
  return trace;
}

Trace scaled(Trace trace, double scale, double speed) {
  const auto times = [scale](uint32_t tokens) {
    return tokens == 0 ? 0 : std::max(1u, static_cast<uint32_t>(std::lround(tokens * scale)));
  };
  trace.block_tokens = times(trace.block_tokens);
  for (TraceRequest& request : trace.requests) {
    request.arrival_s /= speed;
    request.input_tokens = times(request.input_tokens);
    request.output_tokens = times(request.output_tokens);
  }
  return trace;
}

}  // namespace kvarto
