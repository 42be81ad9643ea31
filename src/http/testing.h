// What the server's tests share: a client of plain sockets that can send anything and leave in any way, and a server
// whose handler echoes, or hands its exchanges to the test. Test thread, unless a function says otherwise.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "http/server.h"

namespace kvarto::http_testing {

// A watchdog, no measure: true as soon as the condition holds, false after a time that only a hang takes.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvarto-http-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct Answer {
  int status = 0;  // 0: the connection ended before a whole head
  std::string head, body;
  bool whole = false;  // the body came to the end that its framing promised
  bool has(std::string_view line) const { return head.find("\r\n" + std::string(line) + "\r\n") != std::string::npos; }
  std::string value(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t from = at + name.size() + 4;
    return head.substr(from, head.find("\r\n", from) - from);
  }
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (receive_buffer != 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    set_watchdog();
  }
  explicit RawClient(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    set_watchdog();
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), buffer_(std::move(other.buffer_)) {}
  ~RawClient() { leave(); }

  bool connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  void leave() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    leave();
  }
  // The next bytes; empty at the end (or a reset, or the watchdog: see hung()).
  std::string receive() {
    if (buffer_.empty()) static_cast<void>(more());
    return std::exchange(buffer_, {});
  }
  bool hung() const { return hung_; }
  std::string receive_all() {
    std::string out;
    for (std::string piece = receive(); !piece.empty(); piece = receive()) out += piece;
    return out;
  }
  std::string receive_until(std::string_view mark) {
    std::string out;
    while (out.find(mark) == std::string::npos) {
      const std::string piece = receive();
      if (piece.empty()) break;
      out += piece;
    }
    return out;
  }

  // One reply; what follows it stays for the next call. 100 Continue is a reply of its own.
  Answer answer(bool to_head = false) {
    Answer out;
    while (buffer_.find("\r\n\r\n") == std::string::npos) {
      if (!more()) return out;
    }
    const size_t end = buffer_.find("\r\n\r\n");
    out.head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    if (!out.head.starts_with("HTTP/1.1 ")) return out;
    out.status = std::atoi(out.head.c_str() + 9);
    if (to_head || out.status == 100 || out.status == 204 || out.status == 304) {
      out.whole = true;
    } else if (out.has("Transfer-Encoding: chunked")) {
      out.whole = read_chunks(out.body);
    } else if (const std::string length = out.value("Content-Length"); !length.empty()) {
      out.whole = read_exactly(std::stoul(length), out.body);
    } else {
      while (more()) {
      }
      out.body = std::exchange(buffer_, {});
      out.whole = true;
    }
    return out;
  }
  Answer ask(std::string_view bytes, bool to_head = false) {
    send(bytes);
    return answer(to_head);
  }

 private:
  void set_watchdog() {
    const timeval wait{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
  }
  bool more() {
    const size_t before = buffer_.size();
    buffer_.resize(before + (64 << 10));
    const ssize_t n = ::recv(fd_, buffer_.data() + before, buffer_.size() - before, 0);
    hung_ = hung_ || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
    buffer_.resize(before + (n > 0 ? static_cast<size_t>(n) : 0));
    return n > 0;
  }
  bool read_exactly(size_t size, std::string& out) {
    while (buffer_.size() < size) {
      if (!more()) return false;
    }
    out += buffer_.substr(0, size);
    buffer_.erase(0, size);
    return true;
  }
  bool read_chunks(std::string& out) {
    for (;;) {
      while (buffer_.find("\r\n") == std::string::npos) {
        if (!more()) return false;
      }
      size_t size = 0;
      const size_t line = buffer_.find("\r\n");
      const auto [end, error] = std::from_chars(buffer_.data(), buffer_.data() + line, size, 16);
      if (error != std::errc() || end != buffer_.data() + line) return false;
      buffer_.erase(0, line + 2);
      std::string crlf;
      if (!read_exactly(size, out) || !read_exactly(2, crlf) || crlf != "\r\n") return false;
      if (size == 0) return true;
    }
  }

  int fd_;
  bool connected_ = false, hung_ = false;
  std::string buffer_;
};

inline std::string get(const std::string& target, const std::string& more = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: h\r\n" + more + "\r\n";
}
inline std::string post(const std::string& target, const std::string& body, const std::string& more = "") {
  return "POST " + target + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more +
         "\r\n" + body;
}

// Echoes "METHOD path?query\nbody"; what goes to /hold... waits for the test.
class TestServer {
 public:
  explicit TestServer(HttpServerOptions options = {}) {
    if (options.unix_socket.empty()) options.port = 0;
    Result<std::unique_ptr<HttpServer>> started = HttpServer::start(
        std::move(options), [this](std::shared_ptr<HttpExchange> exchange) { handle(std::move(exchange)); },
        [](int status, std::string_view message) {
          return ServerReply{status, {{"X-Refused", "yes"}}, "refused: " + std::string(message)};
        });
    EXPECT_TRUE(started) << started.error().message;
    if (started) server_ = std::move(*started);
  }

  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  uint16_t port() const { return server_->port(); }
  void destroy() { server_.reset(); }

  // The oldest exchange that is held and was not handed out yet; waits for it.
  std::shared_ptr<HttpExchange> held() {
    std::shared_ptr<HttpExchange> out;
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex_);
      if (held_.empty()) return false;
      out = std::move(held_.front());
      held_.erase(held_.begin());
      return true;
    }));
    return out;
  }
  size_t waiting() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  bool all_closed() {
    return eventually([&] { return server_->counts().open == 0; });
  }

 private:
  void handle(std::shared_ptr<HttpExchange> exchange) {  // front thread
    const ServerRequest& request = exchange->request();
    if (request.path.starts_with("/hold")) {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
    } else if (request.path == "/throw") {
      throw std::runtime_error("from the handler");
    } else if (request.path == "/start-throw") {
      exchange->start({200, {}, "begun"});
      throw std::runtime_error("from the handler");
    } else if (request.path == "/empty") {
      exchange->reply({204, {}, ""});
    } else if (request.path != "/forget") {
      exchange->reply({200,
                       {{"Content-Type", "text/plain"}, {"X-Peer", request.peer}},
                       request.method + " " + request.path + "?" + request.query + "\n" + request.body});
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> held_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace kvarto::http_testing
