// Sends KV events to whoever listens (ZeroMQ PUB) and sends again what somebody missed (ROUTER). One thread of its own
// that sleeps in the kernel encodes and sends; the engine's owner hands batches over and never waits for it.
//
// A batch is three frames: topic, sequence number (8 bytes, big-endian, from 0), payload (kv_event_encoding.h). Batches
// that were dropped because the queue was full have used their number up, so a listener sees a gap, as it does when
// ZeroMQ dropped something for it; asking for a replay tells it which of the two it was.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvarto/kv_events.h"
#include "kvarto/result.h"
#include "server/serve_options.h"

namespace kvarto {

class KvEventPublisher {
 public:
  // Opens the sockets. Binds to an endpoint with `*` or `::` in it and to ipc:// and inproc:// ones, connects to
  // others; the replay socket always binds. The `rank` is added to TCP ports. Errors: an endpoint in use or not
  // understood, a queue of 0.
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventsOptions& options, int rank);
  ~KvEventPublisher();  // what is queued still goes out

  // One batch; nothing when `events` is empty. Any thread, one at a time; never blocks.
  void publish(std::vector<KvEvent> events, double unix_seconds);

  struct Counts {
    uint64_t batches = 0, events = 0, bytes = 0;  // sent
    uint64_t dropped_batches = 0;                 // for want of room in the queue, or refused by ZeroMQ
    uint64_t replays = 0, replayed_batches = 0;
    uint64_t bad_requests = 0;  // to the replay socket
  };
  Counts counts() const;  // any thread

  // As they were opened, with the port that the system chose for `*`.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;  // empty: none

 private:
  struct Impl;
  explicit KvEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
