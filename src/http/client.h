// HttpClient: one blocking request at a time over HTTP/1.1 or HTTPS, each on its own connection, with a limit on every
// wait. Certificates are checked against the system's store (SSL_CERT_FILE and SSL_CERT_DIR are OpenSSL's). Wraps
// Boost.Asio and Beast: client.cc alone includes them. A client holds settings only; several threads may use one.
// HttpConnection: the same, request after request on one connection; one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/proxy.h"
#include "http/url.h"
#include "kvarto/result.h"

namespace kvarto {

struct HttpHeader {
  std::string name, value;
};

struct HttpReply {
  int status = 0;
  std::vector<HttpHeader> headers;
  std::optional<uint64_t> content_length;  // of this body, when announced
  Url url;                                 // the page that answered, after redirects
  std::string error_text;                  // start of the body of a reply that is not 2xx

  const std::string* header(std::string_view name) const;  // the first of that name in any case, or null
};

// Where the body of a 2xx reply goes: `begin` sees status and headers and may refuse them, `data` gets the bytes in
// order.
struct BodySink {
  std::function<Status(const HttpReply&)> begin;
  std::function<Status(std::string_view)> data;
};

enum class Redirects {
  none,         // a redirect is handed back as the reply
  same_origin,  // followed while scheme, host and port stay; else handed back
  all,          // followed anywhere but from https down to http
};

struct HttpRequest {
  Url url;
  bool head = false;                     // HEAD instead of GET
  std::optional<std::string> body;       // POST with this body
  std::vector<HttpHeader> headers;       // beside Host, User-Agent, Accept-Encoding, Connection
  std::string authorization;             // sent to the origin of `url` only, never after a redirect elsewhere
  Redirects redirects = Redirects::all;  // one that answers a POST is handed back
};

struct HttpClientOptions {
  ProxySettings proxy;
  std::chrono::milliseconds connect_limit{15'000};  // per address
  std::chrono::milliseconds idle_limit{60'000};     // for the headers, and for each piece of a body
  std::function<bool()> cancelled;  // asked ten times a second during a wait; true ends it as if its limit had passed
  uint32_t max_redirects = 10;
  size_t max_header_bytes = 64 << 10;
};

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options = {}) : options_(std::move(options)) {}

  // Any status is a reply; an error is a connection that failed, a message that breaks HTTP, or the sink's own.
  Result<HttpReply> send(const HttpRequest& request, const BodySink& sink) const;
  // The whole body in memory; longer than `max_bytes` is an error. The body of a reply that is not 2xx is `error_text`.
  Result<HttpReply> get(const HttpRequest& request, size_t max_bytes, std::string& body) const;

 private:
  HttpClientOptions options_;
};

class HttpConnection {
 public:
  explicit HttpConnection(HttpClientOptions options = {});
  ~HttpConnection();
  HttpConnection(HttpConnection&&) noexcept;
  HttpConnection& operator=(HttpConnection&&) noexcept;

  // As HttpClient::send, without following redirects. Connects when there is no connection to that origin yet, or when
  // the server ended it in between (then nothing of a reply had come, and the request is sent once more).
  Result<HttpReply> send(const HttpRequest& request, const BodySink& sink);
  uint64_t connects() const { return connects_; }

 private:
  HttpClientOptions options_;
  std::unique_ptr<class ClientWire> wire_;
  uint64_t connects_ = 0;
};

}  // namespace kvarto
