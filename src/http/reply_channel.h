// ReplyChannel: one reply on its way from any thread to the connection that writes it. The handler's side holds it
// through an Exchange, the connection's side through itself; either may go first. It never touches a socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "http/body_budget.h"
#include "http/front_queue.h"
#include "http/server.h"

namespace kvarto {

// What there is to write next.
struct ReplyPart {
  std::optional<ServerReply> head;  // with its body when the reply is not `streamed`
  std::string pieces;               // all that waited, joined
  bool streamed = false;
  bool end = false;  // nothing follows
};

// The connection, as the channel sees it. Front thread.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual void reply_ready() = 0;
};

class ReplyChannel : public std::enable_shared_from_this<ReplyChannel> {
 public:
  ReplyChannel(std::shared_ptr<FrontQueue> queue, std::weak_ptr<ReplyWriter> writer, size_t max_pending_bytes);

  // --- the handler's side, any thread; see HttpExchange
  bool reply(ServerReply reply);  // false: there is one already, or nobody to read it
  void start(ServerReply head);
  bool write(std::string_view piece);
  void finish();
  bool closed() const;
  void on_close(std::function<void()> call);
  void set_label(std::string label);
  std::string label() const;
  void abandon();  // nobody will go on with this reply

  // --- the connection's side, front thread
  void on_front();                // the queue's
  bool take(ReplyPart& part);     // false: nothing yet; reply_ready() is called when there is
  void set_unsent(size_t bytes);  // of what was taken
  bool broken() const;            // fell too far behind, or abandoned half way: to be closed
  bool fell_behind() const;
  bool never_begun() const;         // abandoned before any reply
  void give_up(ServerReply reply);  // what a request that was never answered gets
  void written();                   // the whole reply is with the kernel
  void client_gone();

 private:
  void notify(std::unique_lock<std::mutex> lock);
  bool too_slow();

  const std::shared_ptr<FrontQueue> queue_;
  const std::weak_ptr<ReplyWriter> writer_;
  const size_t max_pending_bytes_;

  mutable std::mutex mutex_;
  std::optional<ServerReply> head_;
  std::string pieces_;
  size_t unsent_ = 0;
  std::chrono::steady_clock::time_point progress_at_{};  // when the socket took bytes, or these began to wait
  bool notified_ = false;  // queued, or the connection is writing and looks again by itself
  bool begun_ = false, streamed_ = false, finished_ = false, end_taken_ = false;
  bool abandoned_ = false, fell_behind_ = false;
  bool closed_ = false;  // for the handler: nothing more is taken
  bool gone_ = false, written_ = false;
  std::function<void()> on_close_;
  std::string label_;
};

// What handlers hold.
class Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<ReplyChannel> channel, ServerRequest request, BodyCharge charge)
      : channel_(std::move(channel)), request_(std::move(request)), charge_(std::move(charge)) {}
  ~Exchange() override { channel_->abandon(); }

  const ServerRequest& request() const override { return request_; }
  std::string take_body() override {
    charge_.release();
    return std::exchange(request_.body, {});
  }
  void reply(ServerReply reply) override { channel_->reply(std::move(reply)); }
  void start(ServerReply head) override { channel_->start(std::move(head)); }
  bool write(std::string piece) override { return channel_->write(piece); }
  void finish() override { channel_->finish(); }
  bool closed() const override { return channel_->closed(); }
  void on_close(std::function<void()> call) override { channel_->on_close(std::move(call)); }
  void set_label(std::string label) override { channel_->set_label(std::move(label)); }
  std::string label() const override { return channel_->label(); }

 private:
  const std::shared_ptr<ReplyChannel> channel_;
  ServerRequest request_;
  BodyCharge charge_;  // of its body
};

}  // namespace kvarto
