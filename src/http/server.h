// HttpServer: HTTP/1.1 over TCP, TLS or a Unix socket, with a limit on every size and every wait. One front thread, the
// server's own, reads requests, calls the handler and writes bytes; the handler must not block. Replies may come from
// any thread, whole or in pieces. Boost.Asio and Beast stay behind this header.
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

#include "http/client.h"  // HttpHeader
#include "kvarto/result.h"

namespace kvarto {

struct TlsOptions {
  std::string key_file, certificate_file;  // PEM; empty: plain HTTP
  std::string ca_file;                     // whom client certificates must come from
  std::string ciphers;                     // OpenSSL's list, up to TLS 1.2; empty: its default
  int client_certificates = 0;             // 0 none, 1 optional, 2 required
  bool reload = false;                     // new connections use changed files
};

// A request that is over, for an access log. Views are valid during the call.
struct ServedRequest {
  std::string_view peer = {};
  std::string_view method = {}, path = {};  // empty when they could not be read
  std::string_view label = {};              // see HttpExchange::set_label
  int status = 0;                           // 0: its client went before there was one
  uint64_t bytes = 0;                       // written, head and framing included
  std::chrono::microseconds time{0};        // since the whole request was read
  bool http_1_0 = false;
  bool whole = true;  // the reply; false: the connection ended before
};

struct ServerRequest;
struct ServerReply;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;     // 0: any that is free
  std::string unix_socket;  // path; then host and port are ignored. A stale socket file is replaced
  TlsOptions tls;
  size_t max_header_bytes = 64 << 10;
  size_t max_headers = 256;
  size_t max_body_bytes = 32 << 20;
  // Of all bodies that are being read or wait for their handler, at least max_body_bytes; a further one gets a 503.
  size_t max_bodies_bytes = 512 << 20;
  // Of one reply that its client does not read. More is dropped: when its socket has taken nothing for 5 seconds, or
  // at 16 times as much.
  size_t max_pending_bytes = 4 << 20;
  uint32_t max_connections = 4096;                           // more: accepted, answered 503, closed
  std::chrono::milliseconds header_limit{10'000};            // from a request's first byte to its last header
  std::chrono::milliseconds body_limit{30'000};              // for each further 4 KiB of a body, or its end
  std::chrono::milliseconds keep_alive_limit{5'000};         // between requests (before the first: header_limit)
  std::chrono::milliseconds write_limit{60'000};             // for a client that reads nothing
  std::function<void(const ServedRequest&)> on_served = {};  // front thread, once a request; empty: nobody asks
  // Front thread, as soon as a body of more than 64 KiB is on its way, or the client asks whether to send one: a reply
  // refuses the request before it is read. Of the request the body is not there. Empty: all are read.
  std::function<std::optional<ServerReply>(const ServerRequest& head)> on_head = {};
  // Front thread: adds headers to a reply that the server gives by itself. `read`: the request, as far as it was read.
  std::function<void(const ServerRequest& read, ServerReply&)> on_refused = {};
};

struct ServerRequest {
  std::string method, path, query;  // path percent-decoded, query as sent (without '?')
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;                                        // address of the client, "unix" for a socket file
  const std::string* header(std::string_view name) const;  // the first of that name in any case, or null
};

struct ServerReply {
  int status = 200;
  std::vector<HttpHeader> headers;  // beside Date, Content-Length or Transfer-Encoding, Connection
  std::string body;
};

// One request and its reply. Calls from any thread; after the client has gone, or the server was stopped, they do
// nothing. A client has gone when it ended its side of the connection, too. An exchange that is let go unanswered gives
// a 500.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const ServerRequest& request() const = 0;  // immutable, but for take_body()
  // The body, so that it can be freed before the reply is whole; request().body is empty afterwards. Once, and while no
  // other thread looks at the body.
  virtual std::string take_body() { return request().body; }
  // The whole reply; once, and not together with start().
  virtual void reply(ServerReply reply) = 0;
  // A reply in pieces (chunked): its head, and its body as the first piece.
  virtual void start(ServerReply head) = 0;
  // Queues a piece; pieces that wait together are written together. False when the client has gone or fell more than
  // max_pending_bytes behind (then the connection is closed).
  virtual bool write(std::string piece) = 0;
  virtual void finish() = 0;
  virtual bool closed() const = 0;
  // Called once, on the front thread, when the client goes before its reply is whole; soon, when it has gone already
  // (on the caller's thread once the server has stopped). It is dropped when the reply is whole.
  virtual void on_close(std::function<void()> call) = 0;
  // What ServedRequest calls this request; before its reply is whole.
  virtual void set_label(std::string /*label*/) {}
  virtual std::string label() const { return {}; }  // as it was set
};

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;
// Body and headers of replies that the server gives by itself (400, 408, 413, 417, 431, 500, 501, 503). Front thread.
using HttpRefusal = std::function<ServerReply(int status, std::string_view message)>;

struct HttpServerCounts {
  uint64_t accepted = 0, requests = 0, refused = 0, dropped_slow = 0;
  uint32_t open = 0;
};

class HttpServer {
 public:
  // Binds, listens, starts the front thread. Errors: an address in use, a certificate that cannot be read, with remedy.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler, HttpRefusal refusal);
  virtual ~HttpServer() = default;  // stops at once

  virtual uint16_t port() const = 0;
  virtual std::string address() const = 0;  // "http://127.0.0.1:8000", "https://[::1]:8443", "unix:/path"
  virtual HttpServerCounts counts() const = 0;
  // Runs on the front thread, soon or after a time.
  virtual void post(std::function<void()> call) = 0;
  virtual void after(std::chrono::milliseconds wait, std::function<void()> call) = 0;
  // Accepts no new connection, ends idle ones; replies under way go on, further requests on their connections are
  // answered with Connection: close.
  virtual void stop_accepting() = 0;
  // Closes everything and joins the front thread (called on that thread, it leaves the joining to the destructor).
  // Idempotent.
  virtual void stop() = 0;
};

}  // namespace kvarto
