#include "http/server.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "base/log.h"
#include "format/printable.h"
#include "http/connection.h"
#include "http/listener.h"
#include "http/tls.h"

namespace kvarto {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
// Connections above the limit that may be told so at a time; further ones are closed without a word.
constexpr size_t kMaxTurnedAway = 64;
// Out of descriptors or memory: the next try.
constexpr milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kAcceptLogPause{10};

class AsioServer final : public HttpServer {
 public:
  AsioServer(HttpServerOptions options, HttpHandler handler, HttpRefusal refusal, Listener listener,
             std::unique_ptr<TlsSource> tls);
  ~AsioServer() override;
  Status run();

  uint16_t port() const override { return listener_.port(); }
  std::string address() const override;
  HttpServerCounts counts() const override;
  void post(std::function<void()> call) override { front_.queue->call(std::move(call)); }
  void after(milliseconds wait, std::function<void()> call) override;
  void stop_accepting() override;
  void stop() override;

 private:
  using Protocol = asio::generic::stream_protocol;
  using Timer = std::shared_ptr<asio::steady_timer>;

  asio::awaitable<void> accept_all();
  void welcome(Connection::Socket socket, const Protocol::endpoint& peer);
  asio::awaitable<void> pause_after(error_code error);
  void start_timer(milliseconds wait, std::function<void()> call);
  void close_door();
  void close_all();
  void run_loop();

  Listener listener_;
  const std::unique_ptr<TlsSource> tls_;
  Front front_;
  asio::basic_socket_acceptor<Protocol> acceptor_{front_.io};
  asio::steady_timer accept_timer_{front_.io};
  std::chrono::steady_clock::time_point accept_logged_{};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::set<Timer> timers_;
  std::mutex stop_mutex_;
  std::atomic<std::thread::id> front_id_{};
  std::thread thread_;
};

AsioServer::AsioServer(HttpServerOptions options, HttpHandler handler, HttpRefusal refusal, Listener listener,
                       std::unique_ptr<TlsSource> tls)
    : listener_(std::move(listener)), tls_(std::move(tls)) {
  front_.options = std::move(options);
  front_.handler = std::move(handler);
  front_.refusal = std::move(refusal);
  front_.bodies =
      std::make_shared<BodyBudget>(std::max(front_.options.max_bodies_bytes, front_.options.max_body_bytes));
  front_.queue = std::make_shared<FrontQueue>([this] { asio::post(front_.io, [this] { front_.queue->drain(); }); });
  const size_t wanted = front_.options.max_connections;
  const size_t allowed = allowed_connections(wanted);
  if (allowed < wanted) {
    front_.options.max_connections = static_cast<uint32_t>(allowed);
    log(LogLevel::warning, "HTTP server: " + std::to_string(allowed) + " connections at a time instead of " +
                               std::to_string(wanted) + ": the limit of open files is low (ulimit -n)");
  }
}

AsioServer::~AsioServer() { stop(); }

Status AsioServer::run() {
  const int protocol = listener_.family() == AF_UNIX ? 0 : IPPROTO_TCP;
  error_code error;
  acceptor_.assign(Protocol(listener_.family(), protocol), listener_.release(), error);
  if (error) return fail(ErrorCode::io, listener_.place() + ": " + printable(error.message(), 200));
  work_.emplace(front_.io.get_executor());
  asio::co_spawn(front_.io, accept_all(), asio::detached);
  thread_ = std::thread([this] { run_loop(); });
  return {};
}

void AsioServer::run_loop() {
  front_id_ = std::this_thread::get_id();
  for (;;) {
    try {
      front_.io.run();
      return;
    } catch (const std::exception& error) {
      log(LogLevel::error, std::string("HTTP server: ") + error.what());
    } catch (...) {
      log(LogLevel::error, "HTTP server: unknown exception");
    }
  }
}

std::string AsioServer::address() const {
  if (listener_.family() == AF_UNIX) return "unix:" + listener_.place();
  return (tls_ ? "https://" : "http://") + listener_.place();
}

HttpServerCounts AsioServer::counts() const {
  HttpServerCounts out;
  out.accepted = front_.accepted;
  out.requests = front_.requests;
  out.refused = front_.refused;
  out.dropped_slow = front_.dropped_slow;
  out.open = front_.open;
  return out;
}

// --- accepting

asio::awaitable<void> AsioServer::accept_all() {
  while (acceptor_.is_open()) {
    Connection::Socket socket(front_.io);
    Protocol::endpoint peer;
    auto [error] = co_await acceptor_.async_accept(socket, peer, kTuple);
    if (!front_.accepting) co_return;
    if (error) {
      co_await pause_after(error);
    } else {
      welcome(std::move(socket), peer);
    }
  }
}

// Whatever it was, the next client may have more luck; but the loop must not spin.
asio::awaitable<void> AsioServer::pause_after(error_code error) {
  if (error == asio::error::connection_aborted || error == asio::error::interrupted) co_return;
  const auto now = std::chrono::steady_clock::now();
  if (accept_logged_ == decltype(now){} || now - accept_logged_ > kAcceptLogPause) {
    accept_logged_ = now;
    log(LogLevel::warning, "HTTP server: cannot accept a connection: " + printable(error.message(), 100));
  }
  accept_timer_.expires_after(kAcceptPause);
  auto [ignored] = co_await accept_timer_.async_wait(kTuple);
  static_cast<void>(ignored);
}

void AsioServer::welcome(Connection::Socket socket, const Protocol::endpoint& peer) {
  ++front_.accepted;
  const size_t open = front_.connections.size();
  if (open >= front_.options.max_connections + kMaxTurnedAway) return;
  error_code ignored;
  if (listener_.family() != AF_UNIX) {
    socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
  }
  try {
    Connection::Start start{address_text(peer.data()), tls_ ? tls_->context() : nullptr,
                            open >= front_.options.max_connections};
    auto connection = std::make_shared<Connection>(front_, std::move(socket), std::move(start));
    front_.connections.emplace(connection.get(), connection);
    front_.open = static_cast<uint32_t>(front_.connections.size());
    connection->run();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("HTTP server: a connection cannot begin: ") + error.what());
  }
}

// --- calls from other threads

void AsioServer::after(milliseconds wait, std::function<void()> call) {
  front_.queue->call([this, wait, call = std::move(call)]() mutable { start_timer(wait, std::move(call)); });
}

void AsioServer::start_timer(milliseconds wait, std::function<void()> call) {
  if (!work_) return;
  const auto timer = std::make_shared<asio::steady_timer>(front_.io, wait);
  timers_.insert(timer);
  timer->async_wait([this, timer, call = std::move(call)](error_code error) {
    timers_.erase(timer);
    if (!error && work_) run_guarded(call);
  });
}

void AsioServer::close_door() {
  front_.accepting = false;
  error_code ignored;
  acceptor_.close(ignored);
  accept_timer_.cancel();
  listener_.remove_file();
}

void AsioServer::stop_accepting() {
  front_.queue->call([this] {
    close_door();
    const auto connections = front_.connections;
    for (const auto& [key, connection] : connections) connection->drain();
  });
}

// The loop ends by itself when every coroutine has.
void AsioServer::close_all() {
  close_door();
  const auto connections = front_.connections;
  for (const auto& [key, connection] : connections) connection->close();
  for (const Timer& timer : timers_) timer->cancel();
  work_.reset();
}

void AsioServer::stop() {
  front_.queue->call([this] { close_all(); });
  front_.queue->close();
  // A callback that stops the server cannot wait for itself.
  if (std::this_thread::get_id() == front_id_.load()) return;
  const std::lock_guard lock(stop_mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, HttpHandler handler,
                                                      HttpRefusal refusal) {
  try {
    std::unique_ptr<TlsSource> tls;
    if (!options.tls.key_file.empty() || !options.tls.certificate_file.empty()) {
      ASSIGN_OR_RETURN(tls, TlsSource::open(options.tls));
    }
    ASSIGN_OR_RETURN(Listener listener, Listener::open(options));
    auto server = std::make_unique<AsioServer>(std::move(options), std::move(handler), std::move(refusal),
                                               std::move(listener), std::move(tls));
    RETURN_IF_ERROR(server->run());
    return Result<std::unique_ptr<HttpServer>>(std::move(server));
  } catch (const std::exception& error) {
    return fail(ErrorCode::io, std::string("HTTP server: ") + printable(error.what(), 200));
  }
}

}  // namespace kvarto
