#include "http/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "format/printable.h"

namespace kvarto {
namespace {

constexpr int kBacklog = 1024;
// Descriptors for everything else: models, tiers, logs, sockets of other servers.
constexpr size_t kOtherFiles = 256;

std::string system_text(int error) { return std::generic_category().message(error); }

std::string host_text(const std::string& address) {
  return address.find(':') == std::string::npos ? address : "[" + address + "]";
}

uint16_t port_of(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                                              : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

std::string remedy(int error) {
  if (error == EADDRINUSE) return "; stop what listens there or choose another --port";
  if (error == EACCES) return "; ports below 1024 need a privilege: choose another --port";
  if (error == EADDRNOTAVAIL) return "; this machine has no such address: check --host";
  return "";
}

}  // namespace

Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      family_(other.family_),
      port_(other.port_),
      place_(std::move(other.place_)),
      file_(std::exchange(other.file_, {})),
      file_device_(other.file_device_),
      file_inode_(other.file_inode_) {}

Listener::~Listener() {
  if (fd_ >= 0) ::close(fd_);
  remove_file();
}

int Listener::release() { return std::exchange(fd_, -1); }

void Listener::remove_file() {
  struct stat found {};
  if (!file_.empty() && ::lstat(file_.c_str(), &found) == 0 && found.st_dev == file_device_ &&
      found.st_ino == file_inode_) {
    ::unlink(file_.c_str());
  }
  file_.clear();
}

Result<Listener> Listener::open(const HttpServerOptions& options) {
  return options.unix_socket.empty() ? open_tcp(options) : open_unix(options.unix_socket);
}

Result<Listener> Listener::open_tcp(const HttpServerOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(options.host.empty() ? nullptr : options.host.c_str(),
                                 std::to_string(options.port).c_str(), &hints, &found);
  if (code != 0) {
    return fail(ErrorCode::invalid_argument, "host " + quoted(options.host) + ": " + ::gai_strerror(code) +
                                                 "; give an address of this machine, or 0.0.0.0 for all");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, ::freeaddrinfo);
  // "localhost" has two addresses; everybody tries the IPv4 one.
  const addrinfo* chosen = found;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_family == AF_INET && chosen->ai_family != AF_INET) chosen = a;
  }
  const std::string wanted = host_text(address_text(chosen->ai_addr)) + ":" + std::to_string(options.port);
  const auto refuse = [&](const char* what) {
    const int error = errno;
    return fail(ErrorCode::io, wanted + ": cannot " + what + ": " + system_text(error) + remedy(error));
  };
  Listener out;
  out.family_ = chosen->ai_family;
  out.fd_ = ::socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (out.fd_ < 0) return refuse("open a socket");
  const int on = 1, off = 0;
  ::setsockopt(out.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (out.family_ == AF_INET6) ::setsockopt(out.fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(out.fd_, chosen->ai_addr, chosen->ai_addrlen) != 0) return refuse("bind");
  if (::listen(out.fd_, kBacklog) != 0) return refuse("listen");
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(out.fd_, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return refuse("read the port");
  out.port_ = port_of(reinterpret_cast<const sockaddr*>(&bound));
  out.place_ = host_text(address_text(reinterpret_cast<const sockaddr*>(&bound))) + ":" + std::to_string(out.port_);
  return out;
}

Result<Listener> Listener::open_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path || path.find('\0') != std::string::npos) {
    return fail(ErrorCode::invalid_argument, "socket path " + quoted(path, 200) + ": at most " +
                                                 std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const auto refuse = [&](const std::string& what) { return fail(ErrorCode::io, quoted(path, 200) + ": " + what); };

  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode)) return refuse("exists and is no socket; choose another path");
    // A socket file without a listener is what a killed server leaves.
    const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) return refuse("cannot open a socket: " + system_text(errno));
    const bool stale = ::connect(probe, where, sizeof address) != 0 && errno == ECONNREFUSED;
    ::close(probe);
    if (!stale) return refuse("another server listens there; stop it or choose another path");
    if (::unlink(path.c_str()) != 0) return refuse("cannot remove the stale socket: " + system_text(errno));
  }
  Listener out;
  out.family_ = AF_UNIX;
  out.place_ = path;
  out.fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (out.fd_ < 0) return refuse("cannot open a socket: " + system_text(errno));
  if (::bind(out.fd_, where, sizeof address) != 0) return refuse("cannot bind: " + system_text(errno));
  out.file_ = path;
  if (::lstat(path.c_str(), &found) == 0) {
    out.file_device_ = found.st_dev;
    out.file_inode_ = found.st_ino;
  }
  if (::listen(out.fd_, kBacklog) != 0) return refuse("cannot listen: " + system_text(errno));
  return out;
}

std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
      ::inet_ntop(AF_INET, &v6.s6_addr[12], text.data(), text.size());
    } else {
      ::inet_ntop(AF_INET6, &v6, text.data(), text.size());
    }
  } else {
    return "unix";
  }
  return text.data();
}

size_t allowed_connections(size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = wanted + kOtherFiles;
  if (limit.rlim_cur < needed) {
    rlimit raised = limit;
    raised.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur >= needed) return wanted;
  // So little is left that accepting what comes, and failing sometimes, beats refusing everybody.
  return limit.rlim_cur > 2 * kOtherFiles ? static_cast<size_t>(limit.rlim_cur) - kOtherFiles
                                          : std::min<size_t>(wanted, static_cast<size_t>(limit.rlim_cur) / 2 + 1);
}

}  // namespace kvarto
