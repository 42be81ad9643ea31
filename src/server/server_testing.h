// For tests: a server in this process, at a port of its own, behind real HTTP.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "server/server.h"

namespace kvarto {

class ServedTest : public testing::Test {
 protected:
  void listen(ServeOptions options) {
    options.http.port = 0;
    options.served_model_names = {"tiny"};
    options.log_stats_interval_s = 0;
    auto listening = Server::listen(std::move(options));
    ASSERT_TRUE(listening) << listening.error().message;
    server_ = std::move(*listening);
  }
  void serve(Result<std::unique_ptr<Engine>> engine, const EngineOptions& options = {}) {
    ASSERT_TRUE(engine) << engine.error().message;
    const Status served = server_->serve(std::move(*engine), options);
    ASSERT_TRUE(served) << served.error().message;
  }

  std::unique_ptr<Server> server_;
};

}  // namespace kvarto
