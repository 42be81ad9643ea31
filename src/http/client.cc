#include "http/client.h"

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "base/ascii.h"
#include "format/printable.h"

namespace kvarto {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kMaxErrorText = 4096;
constexpr int kMaxInterimReplies = 10;
constexpr size_t kPieceBytes = 128 << 10;

std::string basic_credentials(const std::string& user_info) {
  std::string out(4 * ((user_info.size() + 2) / 3) + 1, '\0');
  out.resize(static_cast<size_t>(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                                 reinterpret_cast<const unsigned char*>(user_info.data()),
                                                 static_cast<int>(user_info.size()))));
  return "Basic " + out;
}

}  // namespace

// A connection and what is said on it. Asio's operations are started here one at a time and waited for with a limit;
// what takes longer closes the socket.
class ClientWire {
 public:
  ClientWire(const HttpClientOptions& options, const Url& url)
      : options_(options), url_(url), proxy_(proxy_for(options.proxy, url)) {}

  Status open();
  // `keep`: the server is asked to leave the connection open; reusable() says whether it is.
  Result<HttpReply> talk(const HttpRequest& request, const Url& url, bool send_authorization, bool keep,
                         const BodySink& sink);
  bool reusable() const { return reusable_; }
  bool leads_to(const Url& url) const { return origin(url) == origin(url_); }
  // The last request failed before anything of its reply had come.
  bool unanswered() const { return unanswered_; }

 private:
  using Request = http::request<http::string_body>;

  Status connect();
  Status open_tunnel();
  Status start_tls();
  template <class Stream>
  Result<HttpReply> talk_on(Stream& stream, const HttpRequest& request, const Request& message, bool keep,
                            const BodySink& sink);
  template <class Stream>
  Status read_body(Stream& stream, http::response_parser<http::buffer_body>& parser, const HttpReply& reply,
                   const std::function<Result<bool>(std::string_view)>& take);
  Request make_request(const HttpRequest& request, bool send_authorization, bool keep) const;

  template <class Start>
  error_code wait(milliseconds limit, Start&& start);
  tl::unexpected<Error> refuse(const std::string& what) const {
    return fail(ErrorCode::network, shown(url_) + ": " + what);
  }
  tl::unexpected<Error> refuse(const std::string& what, error_code error) const;

  const HttpClientOptions options_;
  Url url_;
  const std::optional<Url> proxy_;
  bool reusable_ = false, unanswered_ = false;
  std::vector<char> piece_;
  asio::io_context io_;
  tcp::resolver resolver_{io_};
  tcp::socket socket_{io_};
  asio::ssl::context tls_context_{asio::ssl::context::tls_client};
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  boost::beast::flat_buffer buffer_;
};

template <class Start>
error_code ClientWire::wait(milliseconds limit, Start&& start) {
  std::optional<error_code> result;
  start([&](error_code error, auto&&...) { result = error; });
  using SteadyClock = std::chrono::steady_clock;
  constexpr milliseconds kLook{100};
  const auto end = SteadyClock::now() + limit;
  io_.restart();
  bool cancelled = false;
  for (auto now = SteadyClock::now(); !result && !cancelled && now < end; now = SteadyClock::now()) {
    io_.run_until(options_.cancelled ? std::min(end, now + kLook) : end);
    cancelled = !result && options_.cancelled && options_.cancelled();
  }
  if (result) return *result;
  error_code ignored;
  resolver_.cancel();
  socket_.close(ignored);
  io_.restart();
  io_.run();
  return asio::error::timed_out;
}

tl::unexpected<Error> ClientWire::refuse(const std::string& what, error_code error) const {
  std::string why = error.message();
  if (error == http::error::end_of_stream || error == http::error::partial_message || error == asio::error::eof ||
      error == asio::ssl::error::stream_truncated) {
    why = "the connection was closed early";
  } else if (error == http::error::header_limit) {
    why = "headers longer than " + std::to_string(options_.max_header_bytes) + " bytes";
  } else if (error == asio::error::timed_out) {
    why = "no answer in time";
  }
  return refuse(what + ": " + printable(why, 200));
}

Status ClientWire::connect() {
  const Url& peer = proxy_ ? *proxy_ : url_;
  const std::string role = proxy_ ? "proxy " + authority(peer) : peer.host;
  tcp::resolver::results_type found;
  error_code error = wait(options_.connect_limit, [&](auto done) {
    resolver_.async_resolve(peer.host, std::to_string(peer.port),
                            [&found, done](error_code result, tcp::resolver::results_type addresses) mutable {
                              found = std::move(addresses);
                              done(result);
                            });
  });
  if (error) return refuse("cannot find " + role, error);
  // One address after the other, so that a dead IPv6 route costs one limit and not the connection.
  for (const auto& entry : found) {
    error_code ignored;
    socket_.close(ignored);
    error = wait(options_.connect_limit, [&](auto done) { socket_.async_connect(entry.endpoint(), done); });
    if (!error) {
      socket_.set_option(tcp::no_delay(true), ignored);
      return {};
    }
  }
  return refuse("cannot connect to " + role, error);
}

// HTTPS through a proxy: asks it for a bare connection to the server.
Status ClientWire::open_tunnel() {
  const std::string host = url_.host.find(':') == std::string::npos ? url_.host : "[" + url_.host + "]";
  const std::string target = host + ":" + std::to_string(url_.port);
  http::request<http::empty_body> request{http::verb::connect, target, 11};
  request.set(http::field::host, target);
  if (!proxy_->user_info.empty()) request.set(http::field::proxy_authorization, basic_credentials(proxy_->user_info));
  error_code error =
      wait(options_.idle_limit, [&](auto done) { http::async_write(socket_, request, std::move(done)); });
  if (error) return refuse("proxy " + authority(*proxy_), error);
  http::response_parser<http::empty_body> parser;
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  // What follows a 2xx to CONNECT is the server's, whatever length the proxy may announce.
  parser.skip(true);
  error =
      wait(options_.idle_limit, [&](auto done) { http::async_read_header(socket_, buffer_, parser, std::move(done)); });
  if (error) return refuse("proxy " + authority(*proxy_), error);
  const unsigned status = parser.get().result_int();
  if (status / 100 != 2) {
    return refuse("proxy " + authority(*proxy_) + " answered CONNECT with " + std::to_string(status) +
                  (status == 407 ? "; put user:password@ into https_proxy" : ""));
  }
  if (buffer_.size() != 0) return refuse("proxy " + authority(*proxy_) + " sent bytes before the TLS handshake");
  return {};
}

Status ClientWire::start_tls() {
  error_code error;
  tls_context_.set_default_verify_paths(error);
  if (error) return refuse("cannot read the system's certificates", error);
  SSL_CTX_set_min_proto_version(tls_context_.native_handle(), TLS1_2_VERSION);
  tls_.emplace(socket_, tls_context_);
  SSL* ssl = tls_->native_handle();
  tls_->set_verify_mode(asio::ssl::verify_peer, error);
  if (error) return refuse("cannot turn on certificate checks", error);
  asio::ip::make_address(url_.host, error);
  const bool is_address = !error;
  const int named = is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), url_.host.c_str())
                               : SSL_set1_host(ssl, url_.host.c_str());
  if (named != 1 || (!is_address && SSL_set_tlsext_host_name(ssl, url_.host.c_str()) != 1)) {
    return refuse("cannot check certificates for this host name");
  }
  error = wait(options_.idle_limit,
               [&](auto done) { tls_->async_handshake(asio::ssl::stream_base::client, std::move(done)); });
  if (!error) return {};
  if (const long verdict = SSL_get_verify_result(ssl); verdict != X509_V_OK) {
    return refuse("the certificate of " + url_.host + " is not trusted (" + X509_verify_cert_error_string(verdict) +
                  "); for a private authority set SSL_CERT_FILE");
  }
  return refuse("TLS handshake", error);
}

ClientWire::Request ClientWire::make_request(const HttpRequest& request, bool send_authorization, bool keep) const {
  const bool absolute = proxy_ && !url_.tls;
  const http::verb verb = request.body ? http::verb::post : request.head ? http::verb::head : http::verb::get;
  Request message{verb, absolute ? origin(url_) + url_.target : url_.target, 11};
  message.set(http::field::host, authority(url_));
  message.set(http::field::user_agent, "kvarto/" KVARTO_VERSION);
  message.set(http::field::accept_encoding, "identity");
  message.set(http::field::connection, keep ? "keep-alive" : "close");
  for (const HttpHeader& header : request.headers) message.set(header.name, header.value);
  if (send_authorization && !request.authorization.empty()) {
    message.set(http::field::authorization, request.authorization);
  }
  if (absolute && !proxy_->user_info.empty()) {
    message.set(http::field::proxy_authorization, basic_credentials(proxy_->user_info));
  }
  if (request.body) {
    message.body() = *request.body;
    message.prepare_payload();
  }
  return message;
}

namespace {

HttpReply read_head(const http::response_parser<http::buffer_body>& parser, const Url& url) {
  HttpReply reply;
  reply.url = url;
  reply.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get()) {
    reply.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  if (const auto length = parser.content_length()) reply.content_length = *length;
  return reply;
}

}  // namespace

// `take` says whether it wants more.
template <class Stream>
Status ClientWire::read_body(Stream& stream, http::response_parser<http::buffer_body>& parser, const HttpReply& reply,
                             const std::function<Result<bool>(std::string_view)>& take) {
  piece_.resize(kPieceBytes);
  uint64_t received = 0;
  while (!parser.is_done()) {
    parser.get().body().data = piece_.data();
    parser.get().body().size = piece_.size();
    error_code error =
        wait(options_.idle_limit, [&](auto done) { http::async_read_some(stream, buffer_, parser, std::move(done)); });
    if (error == http::error::need_buffer) error = {};
    const size_t filled = piece_.size() - parser.get().body().size;
    received += filled;
    if (filled != 0) {
      ASSIGN_OR_RETURN(const bool more, take({piece_.data(), filled}));
      if (!more) return {};
    }
    if (error) {
      const std::string of = reply.content_length ? " of " + std::to_string(*reply.content_length) : std::string();
      return refuse("after " + std::to_string(received) + of + " bytes", error);
    }
  }
  return {};
}

template <class Stream>
Result<HttpReply> ClientWire::talk_on(Stream& stream, const HttpRequest& request, const Request& message, bool keep,
                                      const BodySink& sink) {
  unanswered_ = true;
  error_code error = wait(options_.idle_limit, [&](auto done) { http::async_write(stream, message, std::move(done)); });
  // A server may refuse a body half way and say why.
  const error_code not_sent = error;
  if (not_sent == asio::error::timed_out) unanswered_ = false;  // it may have arrived
  if (not_sent && (!request.body || !socket_.is_open())) return refuse("cannot send the request", not_sent);

  std::optional<http::response_parser<http::buffer_body>> parser;
  // 1xx replies (early hints) come before the real one.
  for (int interim = 0; !parser || parser->get().result_int() / 100 == 1; ++interim) {
    if (interim > kMaxInterimReplies) return refuse("endless 1xx replies");
    parser.emplace();
    parser->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
    parser->body_limit(boost::none);
    parser->skip(request.head);
    error = wait(options_.idle_limit,
                 [&](auto done) { http::async_read_header(stream, buffer_, *parser, std::move(done)); });
    unanswered_ = unanswered_ && !parser->got_some() && error != asio::error::timed_out;
    if (error && not_sent) return refuse("cannot send the request", not_sent);
    if (error) return refuse("no valid reply", error);
  }
  HttpReply reply = read_head(*parser, url_);
  const bool stays = keep && !not_sent && parser->keep_alive();
  if (request.head) {
    reusable_ = stays;
    return reply;
  }
  if (reply.status / 100 != 2) {
    // The reason is nice to have: a failure while reading it changes nothing.
    static_cast<void>(read_body(stream, *parser, reply, [&](std::string_view bytes) -> Result<bool> {
      reply.error_text += bytes.substr(0, kMaxErrorText - reply.error_text.size());
      return reply.error_text.size() < kMaxErrorText;
    }));
    reusable_ = stays && parser->is_done();
    return reply;
  }
  if (const std::string* encoding = reply.header("Content-Encoding");
      encoding && !equal_ignoring_case(*encoding, "identity")) {
    return refuse("body in encoding " + kvarto::quoted(*encoding) + ", which was not asked for");
  }
  if (sink.begin) RETURN_IF_ERROR(sink.begin(reply));
  RETURN_IF_ERROR(read_body(stream, *parser, reply, [&](std::string_view bytes) -> Result<bool> {
    if (sink.data) RETURN_IF_ERROR(sink.data(bytes));
    return true;
  }));
  reusable_ = stays;
  return reply;
}

Status ClientWire::open() {
  RETURN_IF_ERROR(connect());
  if (!url_.tls) return {};
  if (proxy_) RETURN_IF_ERROR(open_tunnel());
  return start_tls();
}

Result<HttpReply> ClientWire::talk(const HttpRequest& request, const Url& url, bool send_authorization, bool keep,
                                   const BodySink& sink) {
  url_ = url;
  reusable_ = false;
  const Request message = make_request(request, send_authorization, keep);
  return tls_ ? talk_on(*tls_, request, message, keep, sink) : talk_on(socket_, request, message, keep, sink);
}

namespace {

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

const std::string* HttpReply::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (equal_ignoring_case(header.name, name)) return &header.value;
  }
  return nullptr;
}

Result<HttpReply> HttpClient::send(const HttpRequest& request, const BodySink& sink) const {
  try {
    Url url = request.url;
    for (uint32_t hops = 0;; ++hops) {
      const bool at_home = origin(url) == origin(request.url);
      ClientWire wire(options_, url);
      RETURN_IF_ERROR(wire.open());
      Result<HttpReply> reply = wire.talk(request, url, at_home, false, sink);
      if (!reply || !is_redirect(reply->status) || request.redirects == Redirects::none || request.body) return reply;
      const std::string* location = reply->header("Location");
      if (location == nullptr) return fail(ErrorCode::network, shown(url) + ": redirect without a Location");
      ASSIGN_OR_RETURN(Url next, resolve_location(url, *location));
      if (request.redirects == Redirects::same_origin && origin(next) != origin(request.url)) return reply;
      if (url.tls && !next.tls) {
        return fail(ErrorCode::network, shown(url) + ": redirect from https down to " + shown(next) + " refused");
      }
      if (hops >= options_.max_redirects) {
        return fail(ErrorCode::network, shown(request.url) + ": more than " + std::to_string(options_.max_redirects) +
                                            " redirects, the last to " + shown(next));
      }
      url = std::move(next);
    }
  } catch (const std::exception& error) {
    return fail(ErrorCode::network, shown(request.url) + ": " + printable(error.what(), 200));
  }
}

Result<HttpReply> HttpClient::get(const HttpRequest& request, size_t max_bytes, std::string& body) const {
  body.clear();
  BodySink sink;
  sink.data = [&](std::string_view bytes) -> Status {
    if (bytes.size() > max_bytes - body.size()) {
      return fail(ErrorCode::network, shown(request.url) + ": longer than " + std::to_string(max_bytes) + " bytes");
    }
    body += bytes;
    return {};
  };
  return send(request, sink);
}

HttpConnection::HttpConnection(HttpClientOptions options) : options_(std::move(options)) {}
HttpConnection::~HttpConnection() = default;
HttpConnection::HttpConnection(HttpConnection&&) noexcept = default;
HttpConnection& HttpConnection::operator=(HttpConnection&&) noexcept = default;

Result<HttpReply> HttpConnection::send(const HttpRequest& request, const BodySink& sink) {
  try {
    for (;;) {
      const bool reused = wire_ && wire_->reusable() && wire_->leads_to(request.url);
      if (!reused) {
        wire_ = std::make_unique<ClientWire>(options_, request.url);
        ++connects_;
        RETURN_IF_ERROR(wire_->open());
      }
      Result<HttpReply> reply = wire_->talk(request, request.url, true, true, sink);
      const bool again = !reply && reused && wire_->unanswered();
      if (!reply || !wire_->reusable()) wire_.reset();
      if (!again) return reply;
    }
  } catch (const std::exception& error) {
    wire_.reset();
    return fail(ErrorCode::network, shown(request.url) + ": " + printable(error.what(), 200));
  }
}

}  // namespace kvarto
