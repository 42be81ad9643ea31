#include "http/request_reader.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>

#include "base/ascii.h"
#include "format/printable.h"
#include "http/url.h"

namespace kvarto {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;
using BoostText = boost::beast::string_view;

constexpr size_t kMaxChunkLine = 1024;
// Longer announcements are believed when the bytes come.
constexpr uint64_t kMaxReserved = 1 << 20;

std::string_view text(BoostText in) { return {in.data(), in.size()}; }

std::string_view trimmed(std::string_view in) {
  const size_t first = in.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return in.substr(first, in.find_last_not_of(" \t") - first + 1);
}

}  // namespace

// Only ever sees heads: it is told that no body follows.
class RequestReader::HeadParser final : public http::basic_parser<true> {
 public:
  HeadParser(const ReadLimits& limits, ServerRequest& request) : limits_(limits), request_(request) {
    skip(true);
    header_limit(static_cast<uint32_t>(std::min<size_t>(limits.header_bytes, UINT32_MAX)));
  }
  bool http_1_0 = false, too_many = false;
  std::string target;

 private:
  void on_request_impl(http::verb, BoostText method, BoostText target_text, int version, error_code&) override {
    request_.method = text(method);
    target = text(target_text);
    http_1_0 = version == 10;
  }
  void on_field_impl(http::field, BoostText name, BoostText value, error_code& error) override {
    if (request_.headers.size() >= limits_.headers) {
      too_many = true;
      error = http::error::header_limit;
      return;
    }
    request_.headers.push_back({std::string(text(name)), std::string(text(value))});
  }
  void on_response_impl(int, BoostText, int, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(BoostText, error_code&) override { return 0; }
  void on_chunk_header_impl(uint64_t, BoostText, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, BoostText, error_code&) override { return 0; }
  void on_finish_impl(error_code&) override {}

  const ReadLimits& limits_;
  ServerRequest& request_;
};

RequestReader::RequestReader(ReadLimits limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

void RequestReader::restart() {
  state_ = State::idle;
  parser_.reset();
  request_ = {};
  head_bytes_ = trailer_bytes_ = 0;
  announced_ = 0;
  wants_continue_ = body_begun_ = false;
}

ServerRequest RequestReader::release() {
  ServerRequest out = std::move(request_);
  restart();
  return out;
}

void RequestReader::refuse(int status, std::string message) {
  state_ = State::refused;
  drop_body();
  refusal_ = {status, std::move(message)};
}

size_t RequestReader::take(std::string_view bytes) {
  size_t used = 0;
  for (bool more = true; more;) {
    const std::string_view rest = bytes.substr(used);
    more = false;
    if (state_ == State::idle || state_ == State::head) {
      used += take_head(rest, more);
    } else if (state_ == State::body) {
      used += take_body(rest, more);
    }
  }
  return used;
}

// `more` becomes true when what is left may be taken on.
size_t RequestReader::take_head(std::string_view bytes, bool& more) {
  size_t used = 0;
  if (state_ == State::idle) {
    // Some clients end a body with an empty line that belongs to nothing.
    used = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
    bytes.remove_prefix(used);
    if (bytes.empty()) return used;
    state_ = State::head;
    parser_ = std::make_unique<HeadParser>(limits_, request_);
  }
  error_code error;
  const size_t taken = parser_->put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
  head_bytes_ += taken;
  const bool open = error == http::error::need_more;
  if (error == http::error::header_limit || (parser_->is_header_done() && head_bytes_ > limits_.header_bytes) ||
      (open && head_bytes_ + (bytes.size() - taken) > limits_.header_bytes)) {
    refuse(431, parser_->too_many
                    ? "more than " + std::to_string(limits_.headers) + " headers"
                    : "request line and headers longer than " + std::to_string(limits_.header_bytes) + " bytes");
  } else if (error && !open) {
    refuse(400, "no valid HTTP/1.1 request: " + printable(error.message(), 100));
  } else if (!open) {
    head_done();
    more = state_ == State::body;
  }
  return used + taken;
}

bool RequestReader::read_target(std::string_view target) {
  if (target.find("://") != std::string_view::npos && !target.starts_with('/')) {  // as to a proxy
    const size_t slash = target.find('/', target.find("://") + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (!target.starts_with('/') && target != "*") {
    refuse(400, "request target " + kvarto::quoted(target) + " must begin with '/'");
    return false;
  }
  target = target.substr(0, target.find('#'));
  const size_t question = std::min(target.find('?'), target.size());
  request_.path = percent_decode(target.substr(0, question));
  request_.query = question < target.size() ? target.substr(question + 1) : std::string_view();
  return true;
}

bool RequestReader::check_fields() {
  size_t hosts = 0;
  for (const HttpHeader& field : request_.headers) {
    if (equal_ignoring_case(field.name, "Host")) ++hosts;
    if (equal_ignoring_case(field.name, "Transfer-Encoding") &&
        (!equal_ignoring_case(trimmed(field.value), "chunked") || http_1_0_)) {
      refuse(http_1_0_ ? 400 : 501, "Transfer-Encoding " + kvarto::quoted(field.value) +
                                        ": send the body with Content-Length or, in HTTP/1.1, as \"chunked\"");
      return false;
    }
    if (equal_ignoring_case(field.name, "Expect")) {
      if (!equal_ignoring_case(trimmed(field.value), "100-continue")) {
        refuse(417, "Expect " + kvarto::quoted(field.value) + ": only 100-continue is known");
        return false;
      }
      wants_continue_ = !http_1_0_;
    }
  }
  if (hosts > 1 || (hosts == 0 && !http_1_0_)) {
    refuse(400, hosts == 0 ? "no Host header" : "more than one Host header");
    return false;
  }
  return true;
}

void RequestReader::head_done() {
  http_1_0_ = parser_->http_1_0;
  keep_alive_ = parser_->keep_alive();
  const bool chunked = parser_->chunked();
  const auto length = parser_->content_length();
  const std::string target = std::move(parser_->target);
  parser_.reset();
  if (!read_target(target) || !check_fields()) return;
  if (!chunked && length.value_or(0) == 0) {
    state_ = State::complete;
    return;
  }
  if (!chunked && *length > limits_.body_bytes) {
    refuse(413, "body of " + std::to_string(*length) + " bytes: at most " + std::to_string(limits_.body_bytes));
    return;
  }
  state_ = State::body;
  part_ = chunked ? BodyPart::chunk_size : BodyPart::counted;
  part_left_ = announced_ = chunked ? 0 : *length;
  if (!chunked) request_.body.reserve(static_cast<size_t>(std::min<uint64_t>(*length, kMaxReserved)));
}

size_t RequestReader::take_body(std::string_view bytes, bool& more) {
  if (bytes.empty()) return 0;
  body_begun_ = true;
  if (part_ == BodyPart::counted || part_ == BodyPart::chunk_data) {
    const size_t taken = static_cast<size_t>(std::min<uint64_t>(part_left_, bytes.size()));
    request_.body.append(bytes.substr(0, taken));
    part_left_ -= taken;
    more = part_left_ == 0 && part_ == BodyPart::chunk_data;
    if (part_left_ == 0 && part_ == BodyPart::counted) state_ = State::complete;
    if (more) part_ = BodyPart::chunk_end;
    return taken;
  }
  const size_t limit = part_ == BodyPart::trailers
                           ? limits_.header_bytes - std::min(trailer_bytes_, limits_.header_bytes)
                       : part_ == BodyPart::chunk_end ? 0
                                                      : kMaxChunkLine;
  std::optional<std::string_view> line;
  const size_t taken = take_line(bytes, limit, more, line);
  if (!line) return taken;
  if (part_ == BodyPart::chunk_end) {
    part_ = BodyPart::chunk_size;
  } else if (part_ == BodyPart::chunk_size) {
    read_chunk_size(*line);
  } else {
    // Trailers are read over: what a proxy checked among the headers must not change behind the body.
    trailer_bytes_ += taken;
    if (line->empty()) state_ = State::complete;
  }
  more = state_ == State::body;
  return taken;
}

// A line of at most `limit` bytes before its CRLF.
size_t RequestReader::take_line(std::string_view bytes, size_t limit, bool& more,
                                std::optional<std::string_view>& line) {
  more = false;
  const size_t end = bytes.find('\n');
  const size_t length = std::min(end, bytes.size());
  const size_t content = length - (length > 0 && bytes[length - 1] == '\r' ? 1 : 0);
  if (content > limit || (end != std::string_view::npos && content == length)) {
    refuse(400, content > limit && part_ != BodyPart::chunk_end ? "chunked body: a line or trailers too long"
                                                                : "chunked body: a chunk or line without its CRLF");
    return 0;
  }
  if (end == std::string_view::npos) return 0;
  line = bytes.substr(0, content);
  return end + 1;
}

void RequestReader::read_chunk_size(std::string_view line) {
  uint64_t size = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  const std::string_view extension = trimmed(line.substr(static_cast<size_t>(end - line.data())));
  if (error == std::errc::invalid_argument || (!extension.empty() && !extension.starts_with(';'))) {
    refuse(400, "chunked body: chunk size " + kvarto::quoted(line) + " is no hexadecimal number");
  } else if (error != std::errc() || size > limits_.body_bytes - request_.body.size()) {
    refuse(413, "body of more than " + std::to_string(limits_.body_bytes) + " bytes");
  } else {
    part_ = size == 0 ? BodyPart::trailers : BodyPart::chunk_data;
    part_left_ = size;
  }
}

const std::string* ServerRequest::header(std::string_view name) const {
  for (const HttpHeader& field : headers) {
    if (equal_ignoring_case(field.name, name)) return &field.value;
  }
  return nullptr;
}

}  // namespace kvarto
