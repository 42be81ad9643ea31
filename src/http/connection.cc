#include "http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>

#include "base/log.h"

namespace kvarto {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 16 << 10;
// A body that trickles has to bring this much within body_limit.
constexpr uint64_t kBodyStep = 4096;
constexpr milliseconds kHangUpCheck{250};
// What was taken from the inbox is cut off in pieces of this size, so that many small requests cost no long moves.
constexpr size_t kCutBytes = 64 << 10;
// After our last byte: how long the client may take to read it and to stop sending.
constexpr milliseconds kLeaveStep{2'000}, kLeaveLimit{30'000};
constexpr size_t kKeptCapacity = 64 << 10;
// Shorter bodies are read whoever sends them, so that refusing them costs nobody a connection.
constexpr uint64_t kUnaskedBody = 64 << 10;

void trim(std::string& buffer) {
  if (buffer.capacity() > kKeptCapacity) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

void append_chunk(std::string& out, std::string_view bytes) {
  std::array<char, 16> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), bytes.size(), 16);
  out.append(digits.data(), static_cast<size_t>(end - digits.data())).append("\r\n").append(bytes).append("\r\n");
}

}  // namespace

const std::string& Front::date() {
  const auto now = std::chrono::system_clock::now();
  if (date_.empty() || now < date_of_ || now - date_of_ >= std::chrono::seconds(1)) {
    date_of_ = std::chrono::floor<std::chrono::seconds>(now);
    date_ = http_date(now);
  }
  return date_;
}

ServerReply Front::refuse(int status, const std::string& message, const ServerRequest& read) {
  ServerReply reply;
  run_guarded([&] {
    reply = refusal(status, message);
    if (options.on_refused) options.on_refused(read, reply);
  });
  reply.status = status;
  return reply;
}

Connection::Connection(Front& front, Socket socket, Start start)
    : front_(front),
      socket_(std::move(socket)),
      peer_(std::move(start.peer)),
      tls_context_(std::move(start.tls)),
      over_limit_(start.over_limit),
      max_ahead_(front.options.max_header_bytes),
      scratch_(kReadBytes),
      reader_({front.options.max_header_bytes, front.options.max_headers, front.options.max_body_bytes}),
      charge_(front.bodies),
      room_(front.io),
      wake_(front.io, Clock::time_point::max()),
      timer_(front.io) {}

void Connection::spawn(asio::awaitable<void> work) {
  asio::co_spawn(front_.io, std::move(work), [self = shared_from_this()](std::exception_ptr thrown) {
    if (!thrown) return;
    log(LogLevel::error, "HTTP server: a connection failed and is closed");
    self->close();
  });
}

void Connection::run() { spawn(begin()); }

asio::awaitable<void> Connection::begin() {
  if (tls_context_) {
    set_due(read_due_, front_.options.header_limit);
    tls_.emplace(socket_, *tls_context_);
    auto [error] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kTuple);
    if (phase_ == Phase::closed) co_return;
    if (error) {
      close();
      co_return;
    }
  }
  set_due(read_due_, front_.options.header_limit);
  phase_ = Phase::idle;
  spawn(write_all());
  if (over_limit_) {
    refuse(503, "more than " + std::to_string(front_.options.max_connections) + " connections; try again later");
  }
  spawn(read_all());
}

// --- reading

asio::awaitable<Connection::Outcome> Connection::read_some() {
  const auto buffer = asio::buffer(scratch_);
  if (tls_) return tls_->async_read_some(buffer, kTuple);
  return socket_.async_read_some(buffer, kTuple);
}

asio::awaitable<void> Connection::read_all() {
  while (phase_ != Phase::closed) {
    auto [error, count] = co_await read_some();
    if (phase_ == Phase::closed) co_return;
    if (error) {
      peer_ended();
      co_return;
    }
    if (phase_ == Phase::leaving) {
      read_due_ = Clock::time_point::max();
      set_due(read_due_, kLeaveStep);
      read_due_ = std::min(read_due_, leave_by_);
    } else if (phase_ != Phase::refusing) {
      inbox_.append(scratch_.data(), count);
      advance();
      if (waiting().size() >= max_ahead_) co_await wait_for_room();
    }
  }
}

// More than a little sent ahead of its turn is left to the kernel; that the client has left meanwhile is seen by
// looking at the socket now and then (behind unread bytes: when it reset the connection), or once its turn has come.
asio::awaitable<void> Connection::wait_for_room() {
  while (phase_ == Phase::reply && waiting().size() >= max_ahead_) {
    room_.expires_after(kHangUpCheck);
    auto [ignored] = co_await room_.async_wait(kTuple);
    static_cast<void>(ignored);
    if (phase_ == Phase::reply && hung_up()) close();
  }
}

bool Connection::hung_up() {
  pollfd look{socket_.native_handle(), POLLRDHUP, 0};
  return ::poll(&look, 1, 0) == 1 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// A client that ends its side has gone: nobody who waits for an answer does so. A refusal is still written, for those
// who sent nonsense and hung up.
void Connection::peer_ended() {
  peer_ended_ = true;
  if (phase_ != Phase::refusing) close();
}

// One request at a time: what was sent ahead stays in inbox_ until the reply before it is whole.
void Connection::advance() {
  if (phase_ != Phase::idle && phase_ != Phase::head && phase_ != Phase::body) return;
  inbox_taken_ += reader_.take(waiting());
  if (inbox_taken_ == inbox_.size() || inbox_taken_ >= std::max(kCutBytes, inbox_.size() / 2)) {
    inbox_.erase(0, std::exchange(inbox_taken_, 0));
  }
  switch (reader_.state()) {
    case RequestReader::State::idle:
      break;
    case RequestReader::State::head:
      if (phase_ != Phase::head) set_due(read_due_, front_.options.header_limit);
      phase_ = Phase::head;
      break;
    case RequestReader::State::body:
      if (!body_may_come()) break;
      if (phase_ != Phase::body || reader_.body_received() >= body_seen_ + kBodyStep) {
        if (phase_ != Phase::body && reader_.wants_continue()) {
          ours_ += "HTTP/1.1 100 Continue\r\n\r\n";
          wake_writer();
        }
        body_seen_ = reader_.body_received();
        set_due(read_due_, front_.options.body_limit);
      }
      phase_ = Phase::body;
      break;
    case RequestReader::State::refused:
      refuse(reader_.refusal().status, reader_.refusal().message);
      break;
    case RequestReader::State::complete:
      if (body_may_come()) dispatch();
      break;
  }
}

// A long body is read for those only whom the server lets, and while there is room for it.
bool Connection::body_may_come() {
  const uint64_t received = reader_.body_received();
  const bool long_one = std::max(received, reader_.body_announced()) > kUnaskedBody || reader_.wants_continue();
  if (long_one && !asked_ && front_.options.on_head) {
    asked_ = true;
    std::optional<ServerReply> refused;
    run_guarded([&] { refused = front_.options.on_head(reader_.request()); });
    if (refused) {
      ++front_.requests;
      method_ = reader_.request().method;
      path_ = reader_.request().path;
      refuse_with(*refused);
      return false;
    }
  }
  if (charge_.grow_to(static_cast<size_t>(received))) return true;
  refuse(503, "the bodies of all requests that wait are longer than " + std::to_string(front_.bodies->most()) +
                  " bytes; try again later");
  return false;
}

void Connection::begin_idle() {
  phase_ = Phase::idle;
  set_due(read_due_, front_.options.keep_alive_limit);
  if (!front_.accepting && waiting().empty()) {
    leave();
    return;
  }
  advance();
  room_.cancel();
}

void Connection::dispatch() {
  phase_ = Phase::reply;
  read_due_ = Clock::time_point::max();
  keep_ = reader_.keep_alive();
  http_1_0_ = reader_.http_1_0();
  bodyless_ = reader_.is_head();
  reply_end_ = false;
  asked_ = false;
  ServerRequest request = reader_.release();
  request.peer = peer_;
  if (front_.options.on_served) {
    method_ = request.method;
    path_ = request.path;
    status_ = 0;
    sent_ = 0;
    read_at_ = Clock::now();
  }
  const auto channel = std::make_shared<ReplyChannel>(front_.queue, weak_from_this(), front_.options.max_pending_bytes);
  channel_ = channel;
  ++front_.requests;
  auto exchange =
      std::make_shared<Exchange>(channel, std::move(request), std::exchange(charge_, BodyCharge(front_.bodies)));
  try {
    front_.handler(std::move(exchange));
    return;
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("HTTP server: a handler threw: ") + error.what());
  } catch (...) {
    log(LogLevel::error, "HTTP server: a handler threw");
  }
  if (phase_ == Phase::reply && !channel->reply(front_.refuse(500, "internal error", {}))) reply_ready();
}

void Connection::refuse(int status, const std::string& message) {
  ++front_.refused;
  method_.clear();
  path_.clear();
  refuse_with(front_.refuse(status, message, reader_.request()));
}

// The reply of a request that is not read to its end.
void Connection::refuse_with(const ServerReply& reply) {
  phase_ = Phase::refusing;
  refused_ = true;
  read_due_ = Clock::time_point::max();
  std::string().swap(inbox_);
  inbox_taken_ = 0;
  reader_.drop_body();
  charge_.release();
  append_reply_head(ours_, reply, Framing::length, reply.body.size(), "close", front_.date());
  if (!reader_.is_head() && status_has_body(reply.status)) ours_ += reply.body;
  if (front_.options.on_served) {
    run_guarded([&] {
      front_.options.on_served(
          {.peer = peer_, .method = method_, .path = path_, .status = reply.status, .bytes = ours_.size()});
    });
  }
  wake_writer();
}

// --- writing

void Connection::wake_writer() { wake_.cancel(); }

void Connection::reply_ready() {
  if (!channel_ || phase_ != Phase::reply) return;
  if (channel_->fell_behind()) {
    drop_slow();
  } else if (channel_->broken()) {
    close();
  } else if (channel_->never_begun()) {
    log(LogLevel::error, "HTTP server: a request was dropped without an answer");
    channel_->give_up(front_.refuse(500, "internal error", {}));
  }
  wake_writer();
}

asio::awaitable<Connection::Outcome> Connection::write_some(std::string_view bytes) {
  const auto buffer = asio::buffer(bytes.data(), bytes.size());
  if (tls_) return tls_->async_write_some(buffer, kTuple);
  return socket_.async_write_some(buffer, kTuple);
}

asio::awaitable<void> Connection::write_all() {
  while (phase_ != Phase::closed) {
    if (!collect()) {
      if (phase_ == Phase::leaving) {
        co_await say_goodbye();
        co_return;
      }
      auto [ignored] = co_await wake_.async_wait(kTuple);
      static_cast<void>(ignored);
      continue;
    }
    std::string_view rest = out_;
    while (!rest.empty()) {
      set_due(write_due_, front_.options.write_limit);
      auto [error, count] = co_await write_some(rest);
      if (phase_ == Phase::closed) co_return;
      if (error) {
        close();
        co_return;
      }
      rest.remove_prefix(count);
      sent_ += count;
      if (channel_) channel_->set_unsent(rest.size());
    }
    write_due_ = Clock::time_point::max();
    all_written();
  }
}

// Fills out_ with all that can be written now.
bool Connection::collect() {
  out_.clear();
  if (!ours_.empty()) {
    out_.swap(ours_);
    return true;
  }
  if (phase_ != Phase::reply || reply_end_) return false;
  while (channel_->take(part_)) {
    compose(part_);
    // A HEAD reply in pieces has nothing to write for most of them.
    if (!out_.empty() || reply_end_) return true;
  }
  return false;
}

void Connection::compose(ReplyPart& part) {
  if (part.head) {
    const ServerReply& head = *part.head;
    status_ = head.status;
    bodyless_ = bodyless_ || !status_has_body(head.status);
    framing_ = !status_has_body(head.status) ? Framing::none
               : !part.streamed              ? Framing::length
               : !http_1_0_                  ? Framing::chunked
                                             : Framing::until_close;
    keep_ = keep_ && front_.accepting && framing_ != Framing::until_close && !asks_to_close(head);
    append_reply_head(out_, head, framing_, head.body.size(),
                      !keep_      ? "close"
                      : http_1_0_ ? "keep-alive"
                                  : "",
                      front_.date());
    if (!bodyless_) out_ += head.body;
  }
  const bool chunked = framing_ == Framing::chunked && !bodyless_;
  if (!part.pieces.empty() && !bodyless_) {
    if (chunked) {
      append_chunk(out_, part.pieces);
    } else {
      out_ += part.pieces;
    }
  }
  reply_end_ = part.end;
  if (reply_end_ && chunked) out_ += "0\r\n\r\n";
}

// out_ is with the kernel.
void Connection::all_written() {
  if (phase_ == Phase::refusing && ours_.empty()) {
    leave();
  } else if (phase_ == Phase::reply && reply_end_) {
    channel_->written();
    tell_served(true);
    channel_.reset();
    trim(out_);
    trim(part_.pieces);
    part_.head.reset();
    if (inbox_.empty()) trim(inbox_);
    if (keep_) {
      begin_idle();
    } else {
      leave();
    }
  }
}

// The reply of channel_ is over.
void Connection::tell_served(bool whole) {
  if (!front_.options.on_served) return;
  run_guarded([&] {
    const std::string label = channel_->label();
    front_.options.on_served({.peer = peer_,
                              .method = method_,
                              .path = path_,
                              .label = label,
                              .status = status_,
                              .bytes = sent_,
                              .time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - read_at_),
                              .http_1_0 = http_1_0_,
                              .whole = whole});
  });
}

// Nothing more will be written. Closing with unread bytes would make the kernel reset the connection, and the client
// lose our last words; so they are read over until it has ended its side too, or took too long.
void Connection::leave() {
  phase_ = Phase::leaving;
  leave_by_ = Clock::now() + kLeaveLimit;
  set_due(read_due_, kLeaveStep);
  wake_writer();
  room_.cancel();
}

asio::awaitable<void> Connection::say_goodbye() {
  error_code ignored;
  // Not after a refusal: OpenSSL takes what the client still sends for an attack, and could read no further.
  if (tls_ && !refused_) {
    auto [error] = co_await tls_->async_shutdown(kTuple);
    ignored = error;
  }
  if (phase_ == Phase::closed) co_return;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  if (peer_ended_) close();
}

// --- ends and limits

void Connection::close() {
  if (phase_ == Phase::closed) return;
  const std::shared_ptr<Connection> self = shared_from_this();  // the table may hold the last reference
  phase_ = Phase::closed;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  wake_.cancel();
  room_.cancel();
  charge_.release();
  front_.connections.erase(this);
  front_.open = static_cast<uint32_t>(front_.connections.size());
  if (channel_) tell_served(false);
  if (const auto channel = std::exchange(channel_, nullptr)) channel->client_gone();
}

void Connection::drop_slow() {
  ++front_.dropped_slow;
  // What the kernel holds for this client goes too.
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

void Connection::drain() {
  if (phase_ == Phase::idle && waiting().empty()) leave();
}

void Connection::set_due(Clock::time_point& which, milliseconds wait) {
  which = Clock::now() + wait;
  arm();
}

// One timer for all limits: it is moved only to fire earlier; fired too early, it looks again.
void Connection::arm() {
  const Clock::time_point due = std::min(read_due_, write_due_);
  if (due >= armed_for_ || phase_ == Phase::closed) return;
  armed_for_ = due;
  timer_.expires_at(due);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->phase_ == Phase::closed) return;
    self->armed_for_ = Clock::time_point::max();
    self->on_time();
  });
}

void Connection::on_time() {
  const Clock::time_point now = Clock::now();
  if (now >= write_due_) {
    drop_slow();
    return;
  }
  if (now >= read_due_) {
    const auto seconds = [](milliseconds limit) { return std::to_string(limit.count()) + " ms"; };
    read_due_ = Clock::time_point::max();
    switch (phase_) {
      case Phase::idle:
        leave();
        break;
      case Phase::head:
        refuse(408, "the request's headers took longer than " + seconds(front_.options.header_limit));
        break;
      case Phase::body:
        refuse(408, "no more of the request's body came within " + seconds(front_.options.body_limit));
        break;
      case Phase::handshake:
      case Phase::leaving:
        close();
        return;
      case Phase::reply:
      case Phase::refusing:
      case Phase::closed:
        break;
    }
  }
  arm();
}

}  // namespace kvarto
