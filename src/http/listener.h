// The socket a server listens on: bound by plain system calls, so that each refusal can say what to do. Owned by the
// server; any one thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "http/server.h"

namespace kvarto {

class Listener {
 public:
  static Result<Listener> open(const HttpServerOptions& options);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();  // closes, and removes the socket file when it is still ours

  int release();  // the descriptor, for an owner who closes it
  int family() const { return family_; }
  uint16_t port() const { return port_; }              // 0: Unix
  const std::string& place() const { return place_; }  // "127.0.0.1:8000", "[::1]:8000", "/run/kvarto.sock"
  void remove_file();

 private:
  Listener() = default;
  static Result<Listener> open_tcp(const HttpServerOptions& options);
  static Result<Listener> open_unix(const std::string& path);

  int fd_ = -1, family_ = AF_INET;
  uint16_t port_ = 0;
  std::string place_;
  std::string file_;  // of a Unix socket that we made
  uint64_t file_device_ = 0, file_inode_ = 0;
};

// "127.0.0.1", "::1" (an IPv4 address in IPv6 clothes as IPv4), "unix".
std::string address_text(const sockaddr* address);
// How many connections this process can have open, after raising its soft limit up to `wanted` where that is allowed.
size_t allowed_connections(size_t wanted);

}  // namespace kvarto
