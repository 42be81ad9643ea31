// Server: `kvarto serve` without its command line: an engine behind HTTP in the shapes of vLLM's and OpenAI's API.
// Three threads beside the engine's workers: the engine's owner, one that reads requests and turns text into ids, and
// the front thread that writes bytes and owns every reply. listen() first (everything but /ping answers 503), then
// serve() with the loaded engine.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kvarto/engine.h"
#include "kvarto/plan.h"
#include "server/serve_options.h"

namespace kvarto {

class Server {
 public:
  // Errors: an address in use, files that cannot be read, options that contradict each other.
  static Result<std::unique_ptr<Server>> listen(ServeOptions options);
  // Stops at once: running requests end as aborted.
  ~Server();

  // From now on requests are answered. `info` lines are logged by the caller.
  // `plan` is shown on the dashboard.
  Status serve(std::unique_ptr<Engine> engine, const EngineOptions& engine_options, const MemoryPlan& plan = {});
  // For EngineOptions::on_kv_life of the engine that serve() will get: feeds the histograms of block lives. As long as
  // this server.
  std::function<void(const BlockLife&)> kv_life_sink();
  std::string address() const;
  uint16_t port() const;
  // Called once, on the front thread, soon after the engine has stopped for good; to be set before serve().
  void on_failure(std::function<void()> call);
  // Fails from then on, with the reason. Any thread, after serve().
  Status health() const;
  // New requests get 503, on old connections and new ones; accepted ones go on. True once they are done and nobody is
  // connected any more. False after `limit`: what is not answered by then gets a 503 or an error event, and a second to
  // read it. Once.
  bool drain(std::chrono::milliseconds limit);
  // Tests: the engine's thread sleeps so long before each step.
  void stall(uint64_t us);
  // Tests: a request that did not come over HTTP, so that writing its reply can be made to fail.
  void take(std::shared_ptr<HttpExchange> exchange);

  struct Impl;  // server_impl.h

 private:
  Server();
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
