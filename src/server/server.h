// Server: `kvarto serve` without its command line: an engine behind HTTP in the shapes of vLLM's and OpenAI's API.
// Three threads beside the engine's workers: the engine's owner, one that reads requests and turns text into ids, and
// the front thread that writes bytes and owns every reply. listen() first (everything but /ping answers 503), then
// serve() with the loaded engine.
#pragma once

#include <chrono>
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
  std::string address() const;
  uint16_t port() const;
  // New requests get 503; running ones go on. True once nothing runs, false after `limit`.
  bool drain(std::chrono::milliseconds limit);
  // Tests: the engine's thread sleeps so long before each step.
  void stall(uint64_t us);

  struct Impl;  // server_impl.h

 private:
  Server();
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
