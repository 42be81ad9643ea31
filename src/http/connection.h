// Connection: one client of the HTTP server. Two coroutines share it: one reads all the time, so that a client who goes
// is noticed in every state, the other writes whatever there is. Kept alive by them and by the server's table until
// closed. Front thread only. Wraps Boost.Asio; only server.cc and connection.cc include it.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "http/body_budget.h"
#include "http/reply_channel.h"
#include "http/reply_head.h"
#include "http/request_reader.h"
#include "http/server.h"

namespace kvarto {

class Connection;

// What all connections of a server share. Front thread, but for the counters.
struct Front {
  HttpServerOptions options;
  HttpHandler handler;
  HttpRefusal refusal;
  boost::asio::io_context io{1};
  std::shared_ptr<FrontQueue> queue;
  std::shared_ptr<BodyBudget> bodies;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  bool accepting = true;
  std::atomic<uint64_t> accepted{0}, requests{0}, refused{0}, dropped_slow{0};
  std::atomic<uint32_t> open{0};

  const std::string& date();  // as the Date header has it
  ServerReply refuse(int status, const std::string& message, const ServerRequest& read);

 private:
  std::chrono::system_clock::time_point date_of_{};
  std::string date_;
};

class Connection final : public ReplyWriter, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  struct Start {
    std::string peer;
    std::shared_ptr<boost::asio::ssl::context> tls;  // null: plain
    bool over_limit = false;                         // gets a 503
  };

  Connection(Front& front, Socket socket, Start start);

  void run();    // begins; once
  void close();  // at once, whatever is under way
  void drain();  // the server accepts no more: an idle connection ends
  void reply_ready() override;

 private:
  using Clock = std::chrono::steady_clock;
  using Outcome = std::tuple<boost::system::error_code, size_t>;
  enum class Phase { handshake, idle, head, body, reply, refusing, leaving, closed };

  boost::asio::awaitable<void> begin();
  boost::asio::awaitable<void> read_all();
  boost::asio::awaitable<void> write_all();
  boost::asio::awaitable<void> wait_for_room();
  boost::asio::awaitable<void> say_goodbye();
  boost::asio::awaitable<Outcome> read_some();
  boost::asio::awaitable<Outcome> write_some(std::string_view bytes);
  void spawn(boost::asio::awaitable<void> work);

  void advance();
  void begin_idle();
  void dispatch();
  void refuse(int status, const std::string& message);
  void refuse_with(const ServerReply& reply);
  bool body_may_come();
  bool collect();
  void compose(ReplyPart& part);
  void all_written();
  void tell_served(bool whole);
  void leave();
  void wake_writer();
  void peer_ended();
  bool hung_up();
  std::string_view waiting() const { return std::string_view(inbox_).substr(inbox_taken_); }
  void drop_slow();

  void set_due(Clock::time_point& which, std::chrono::milliseconds wait);
  void arm();
  void on_time();

  Front& front_;
  Socket socket_;
  const std::string peer_;
  const std::shared_ptr<boost::asio::ssl::context> tls_context_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
  const bool over_limit_;
  const size_t max_ahead_;  // bytes that are read before their turn
  Phase phase_ = Phase::handshake;

  // Reading
  std::vector<char> scratch_;
  std::string inbox_;       // read and not yet taken: a part of a head, or requests sent ahead
  size_t inbox_taken_ = 0;  // of its beginning
  RequestReader reader_;
  uint64_t body_seen_ = 0;
  BodyCharge charge_;   // of the body that is being read
  bool asked_ = false;  // on_head, about this request
  bool peer_ended_ = false, refused_ = false;
  boost::asio::steady_timer room_;

  // Writing
  std::shared_ptr<ReplyChannel> channel_;  // the reply under way
  std::string ours_;                       // what the server says by itself: 100 Continue, refusals
  std::string out_;
  ReplyPart part_;
  Framing framing_ = Framing::none;
  bool keep_ = false, bodyless_ = false, http_1_0_ = false, reply_end_ = false;
  boost::asio::steady_timer wake_;

  // Of the request under way, for on_served
  std::string method_, path_;
  int status_ = 0;
  uint64_t sent_ = 0;
  Clock::time_point read_at_{};

  // Waiting
  boost::asio::steady_timer timer_;
  Clock::time_point read_due_ = Clock::time_point::max(), write_due_ = Clock::time_point::max(),
                    armed_for_ = Clock::time_point::max(), leave_by_{};
};

}  // namespace kvarto
