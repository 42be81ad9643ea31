#include "server/kv_event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <zmq.hpp>

#include "base/log.h"
#include "server/kv_event_encoding.h"

namespace kvarto {
namespace {

constexpr int kLingerMs = 200;                           // what waits for slow listeners when the server ends
constexpr size_t kMostBufferedBytes = size_t{64} << 20;  // for replays, whatever buffer_steps says
constexpr size_t kRequestFrames = 3;
constexpr uint64_t kEndOfReplay = UINT64_MAX;

using NumberFrame = std::array<uint8_t, 8>;

NumberFrame number_frame(uint64_t number) {
  NumberFrame out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(number >> (8 * (out.size() - 1 - i)));
  return out;
}

uint64_t read_number(const zmq::message_t& frame) {
  uint64_t out = 0;
  for (size_t i = 0; i < frame.size(); ++i) out = out << 8 | frame.data<uint8_t>()[i];
  return out;
}

// A rank above 0 has a port, or a name inside the process, of its own.
Result<std::string> endpoint_of_rank(const std::string& endpoint, int rank) {
  if (rank == 0) return endpoint;
  if (endpoint.starts_with("inproc://")) return endpoint + "_dp" + std::to_string(rank);
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  const char* end = endpoint.data() + endpoint.size();
  const bool number = endpoint.starts_with("tcp://") &&
                      std::from_chars(endpoint.data() + colon + 1, end, port) == std::from_chars_result{end, {}};
  if (!number) {
    return fail(ErrorCode::invalid_argument, "KV event endpoint " + endpoint + " of rank " + std::to_string(rank) +
                                                 " has no port that the rank can be added to; use tcp://HOST:PORT");
  }
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

bool is_bound(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

// Binds or connects; the endpoint as the socket has it.
Result<std::string> open_socket(zmq::socket_t& socket, const std::string& endpoint, bool bind, const char* what) {
  try {
    if (bind) {
      socket.bind(endpoint);
    } else {
      socket.connect(endpoint);
    }
    return socket.get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& error) {
    return fail(ErrorCode::network, endpoint + ": cannot " + (bind ? "bind" : "connect") + " the " + what + ": " +
                                        error.what() + "; name another one in --kv-events-config");
  }
}

}  // namespace

struct KvEventPublisher::Impl {
  struct Batch {
    std::vector<KvEvent> events;
    double unix_seconds = 0;
    uint64_t number = 0;
  };
  // A batch that was sent. ZeroMQ's messages share their bytes, so a replay copies none.
  struct Sent {
    uint64_t number;
    zmq::message_t payload;
  };

  Impl(KvEventsOptions given, int own_rank)
      : options(std::move(given)),
        rank(own_rank),
        form{.array_encoding = options.array_encoding, .full_hashes = options.full_hashes} {}
  ~Impl() {
    if (thread.joinable()) {
      {
        const std::lock_guard lock(mutex);
        ending = true;
      }
      wake();
      thread.join();
    }
    if (wake_fd >= 0) close(wake_fd);
  }

  Status open();
  void wake() const { eventfd_write(wake_fd, 1); }
  void publish(std::vector<KvEvent> events, double unix_seconds);

  // --- the publisher's thread
  void run();
  bool wait_for_work();  // true: somebody asks for a replay
  void send(Batch& batch);
  void keep(uint64_t number, zmq::message_t& payload);
  void answer_request();
  void replay(zmq::message_t& client, uint64_t from);
  void send_again(zmq::message_t& client, uint64_t number, zmq::message_t& payload);
  template <typename Work>
  bool guarded(const char* what, Work work);

  const KvEventsOptions options;
  const int rank;
  const KvEventForm form;
  std::string endpoint, replay_endpoint;
  int wake_fd = -1;

  zmq::context_t context;
  zmq::socket_t publisher, replayer;  // used by the thread once it runs
  std::deque<Sent> sent;
  size_t sent_bytes = 0;
  bool complained = false;

  std::mutex mutex;  // of the next three; held for a few instructions only
  std::vector<Batch> queue;
  uint64_t next_number = 0;
  bool ending = false;

  std::atomic<uint64_t> batches{0}, events_sent{0}, bytes{0}, dropped{0}, replays{0}, replayed{0}, bad_requests{0};
  std::thread thread;
};

Status KvEventPublisher::Impl::open() {
  wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return fail(ErrorCode::io, std::string("no event file for KV events: ") + std::strerror(errno));
  ASSIGN_OR_RETURN(endpoint, endpoint_of_rank(options.endpoint, rank));
  publisher = zmq::socket_t(context, zmq::socket_type::pub);
  publisher.set(zmq::sockopt::sndhwm, static_cast<int>(options.high_water_mark));
  publisher.set(zmq::sockopt::linger, kLingerMs);
  ASSIGN_OR_RETURN(endpoint, open_socket(publisher, endpoint, is_bound(endpoint), "KV event endpoint"));
  if (options.replay_endpoint.empty()) return {};
  ASSIGN_OR_RETURN(replay_endpoint, endpoint_of_rank(options.replay_endpoint, rank));
  replayer = zmq::socket_t(context, zmq::socket_type::router);
  // Room for one whole replay and its end per client; what a client asks for on top and does not read is dropped.
  replayer.set(zmq::sockopt::sndhwm, static_cast<int>(options.buffer_steps) + 1);
  replayer.set(zmq::sockopt::linger, kLingerMs);
  ASSIGN_OR_RETURN(replay_endpoint, open_socket(replayer, replay_endpoint, true, "KV replay endpoint"));
  return {};
}

// --- the owner's side

void KvEventPublisher::Impl::publish(std::vector<KvEvent> events, double unix_seconds) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex);
    const uint64_t number = next_number++;
    if (queue.size() >= options.max_queue_size) {
      ++dropped;
      return;
    }
    queue.push_back({std::move(events), unix_seconds, number});
  }
  wake();
}

// --- the thread's side

// Runs what ZeroMQ may refuse; the first refusal is logged, all are counted by the caller.
template <typename Work>
bool KvEventPublisher::Impl::guarded(const char* what, Work work) {
  try {
    work();
    return true;
  } catch (const zmq::error_t& error) {
    if (!complained) log(LogLevel::warning, std::string(what) + " failed (said once): " + error.what());
    complained = true;
    return false;
  }
}

bool KvEventPublisher::Impl::wait_for_work() {
  zmq_pollitem_t items[2] = {{nullptr, wake_fd, ZMQ_POLLIN, 0}, {nullptr, 0, ZMQ_POLLIN, 0}};
  int count = 1;
  if (replayer) items[count++].socket = replayer.handle();
  while (zmq_poll(items, count, -1) < 0 && zmq_errno() == EINTR) {
  }
  eventfd_t woken;
  eventfd_read(wake_fd, &woken);  // fails when nobody woke us; either way the next wait sleeps
  return count > 1 && (items[1].revents & ZMQ_POLLIN) != 0;
}

void KvEventPublisher::Impl::run() {
  std::vector<Batch> taken;
  for (bool last = false; !last;) {
    const bool asked = wait_for_work();
    {
      const std::lock_guard lock(mutex);
      taken.swap(queue);
      last = ending;
    }
    for (Batch& batch : taken) send(batch);
    taken.clear();
    if (asked) answer_request();  // one at a time: live batches go first
  }
}

void KvEventPublisher::Impl::send(Batch& batch) {
  const std::string encoded = encode_kv_events(batch.events, form, batch.unix_seconds, rank);
  zmq::message_t payload(encoded.data(), encoded.size());
  if (!replay_endpoint.empty()) keep(batch.number, payload);
  const NumberFrame number = number_frame(batch.number);
  const bool gone = guarded("sending KV events", [&] {
    publisher.send(zmq::buffer(options.topic), zmq::send_flags::sndmore);
    publisher.send(zmq::buffer(number), zmq::send_flags::sndmore);
    publisher.send(payload, zmq::send_flags::none);
  });
  if (!gone) {
    ++dropped;
    return;
  }
  ++batches;
  events_sent += batch.events.size();
  bytes += encoded.size();
}

void KvEventPublisher::Impl::keep(uint64_t number, zmq::message_t& payload) {
  sent.push_back({number, {}});
  sent.back().payload.copy(payload);
  sent_bytes += payload.size();
  while (sent.size() > options.buffer_steps || (sent_bytes > kMostBufferedBytes && !sent.empty())) {
    sent_bytes -= sent.front().payload.size();
    sent.pop_front();
  }
}

// A request is [client, empty, first number wanted].
void KvEventPublisher::Impl::answer_request() {
  std::vector<zmq::message_t> frames;
  const bool read = guarded("reading a request for KV events", [&] {
    for (bool more = true; more;) {
      zmq::message_t frame;
      if (!replayer.recv(frame, zmq::recv_flags::dontwait)) return;
      more = frame.more();
      if (frames.size() <= kRequestFrames) frames.push_back(std::move(frame));
    }
  });
  if (!read || frames.empty()) return;
  if (frames.size() == kRequestFrames && frames[1].size() == 0 && frames[2].size() == sizeof(uint64_t)) {
    ++replays;
    guarded("replaying KV events", [&] { replay(frames[0], read_number(frames[2])); });
  } else {
    ++bad_requests;
  }
}

void KvEventPublisher::Impl::replay(zmq::message_t& client, uint64_t from) {
  for (Sent& batch : sent) {
    if (batch.number < from) continue;
    zmq::message_t payload;
    payload.copy(batch.payload);
    send_again(client, batch.number, payload);
    ++replayed;
  }
  zmq::message_t nothing;
  send_again(client, kEndOfReplay, nothing);
}

// [client, empty, topic, number, payload]; the older form has no topic, and the end has an empty one.
void KvEventPublisher::Impl::send_again(zmq::message_t& client, uint64_t number, zmq::message_t& payload) {
  zmq::message_t to;
  to.copy(client);
  replayer.send(to, zmq::send_flags::sndmore);
  replayer.send(zmq::message_t(), zmq::send_flags::sndmore);
  if (!form.array_encoding) {
    const std::string topic = number == kEndOfReplay ? "" : options.topic;
    replayer.send(zmq::buffer(topic), zmq::send_flags::sndmore);
  }
  replayer.send(zmq::buffer(number_frame(number)), zmq::send_flags::sndmore);
  replayer.send(payload, zmq::send_flags::none);
}

// --- the interface

KvEventPublisher::KvEventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvEventPublisher::~KvEventPublisher() = default;

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventsOptions& options, int rank) {
  if (options.publisher != "zmq") {
    return fail(ErrorCode::invalid_argument, "KV event publisher \"" + options.publisher +
                                                 "\" is not built; \"zmq\" is, and \"null\" publishes nothing");
  }
  if (options.max_queue_size == 0) {
    return fail(ErrorCode::invalid_argument, "max_queue_size 0 of KV events would drop every batch; give it 1 or more");
  }
  try {
    auto impl = std::make_unique<Impl>(options, rank);
    RETURN_IF_ERROR(impl->open());
    impl->thread = std::thread([raw = impl.get()] { raw->run(); });
    return std::unique_ptr<KvEventPublisher>(new KvEventPublisher(std::move(impl)));
  } catch (const zmq::error_t& error) {
    return fail(ErrorCode::io, std::string("ZeroMQ cannot start for KV events: ") + error.what());
  }
}

void KvEventPublisher::publish(std::vector<KvEvent> events, double unix_seconds) {
  impl_->publish(std::move(events), unix_seconds);
}

KvEventPublisher::Counts KvEventPublisher::counts() const {
  return {.batches = impl_->batches,
          .events = impl_->events_sent,
          .bytes = impl_->bytes,
          .dropped_batches = impl_->dropped,
          .replays = impl_->replays,
          .replayed_batches = impl_->replayed,
          .bad_requests = impl_->bad_requests};
}

const std::string& KvEventPublisher::endpoint() const { return impl_->endpoint; }
const std::string& KvEventPublisher::replay_endpoint() const { return impl_->replay_endpoint; }

}  // namespace kvarto
