// For tests: an exchange that keeps what a reply writes, without HTTP.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "http/server.h"

namespace kvarto {

class RecordedExchange : public HttpExchange {
 public:
  explicit RecordedExchange(ServerRequest request = {}) : request_(std::move(request)) {}
  const ServerRequest& request() const override { return request_; }
  void reply(ServerReply reply) override { written += reply.body; }
  void start(ServerReply head) override {
    if (std::exchange(broken, false)) throw std::runtime_error("planted");
    written += head.body;
  }
  bool write(std::string piece) override {
    written += piece;
    return true;
  }
  void finish() override { finished = true; }
  bool closed() const override { return false; }
  void on_close(std::function<void()>) override {}

  std::string written;
  bool finished = false;
  bool broken = false;  // the next start() throws

 private:
  const ServerRequest request_;
};

}  // namespace kvarto
