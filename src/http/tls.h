// TlsSource: the server's certificate and TLS rules as a context for new connections; with `reload`, files that changed
// are read again, and while they cannot be used the last good context stays. Owned by the server; front thread, after
// it was opened.
#pragma once

#include <array>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <memory>

#include "http/server.h"

namespace kvarto {

class TlsSource {
 public:
  static Result<std::unique_ptr<TlsSource>> open(const TlsOptions& options);
  std::shared_ptr<boost::asio::ssl::context> context();  // for a connection that begins now

 private:
  using Stamp = std::array<int64_t, 12>;  // device, inode, seconds and nanoseconds of the three files

  explicit TlsSource(const TlsOptions& options) : options_(options) {}
  Stamp stamp() const;
  Result<std::shared_ptr<boost::asio::ssl::context>> load() const;

  const TlsOptions options_;
  Stamp stamp_{};
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace kvarto
