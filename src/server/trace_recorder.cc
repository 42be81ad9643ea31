#include "server/trace_recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "format/printable.h"
#include "server/engine_thread.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

constexpr size_t kWriteBytes = 64 << 10;
// What may wait for a disk that does not answer.
constexpr size_t kMostQueuedBytes = 32 << 20;
// Readers keep ids in signed 64-bit columns.
constexpr uint64_t kIdMask = UINT64_MAX >> 1;

std::string system_words() { return printable(std::generic_category().message(errno), 200); }

// Where every chain of this salt begins. Its 32 bytes are nowhere written, so that ids cannot be computed from guesses.
BlockHash root_of(std::string_view secret, std::string_view cache_salt) {
  Sha256 hash;
  hash.update(std::to_string(secret.size()) + ":");
  hash.update(secret);
  hash.update(cache_salt);
  return hash.finish();
}

// The chain over the whole blocks of what is added; the rest waits for more.
class Chain {
 public:
  Chain(const BlockHash& root, uint32_t block_tokens) : last_(root), block_tokens_(block_tokens) {}

  void add(std::span<const TokenId> tokens, std::vector<uint64_t>& ids) {
    rest_.insert(rest_.end(), tokens.begin(), tokens.end());
    size_t at = 0;
    for (; at + block_tokens_ <= rest_.size(); at += block_tokens_) {
      last_ = chain_hash(last_, std::span(rest_).subspan(at, block_tokens_));
      ids.push_back(event_id(last_) & kIdMask);
    }
    rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  // Of a block that is not full.
  void add_rest(std::vector<uint64_t>& ids) const {
    if (!rest_.empty()) ids.push_back(event_id(chain_hash(last_, rest_)) & kIdMask);
  }

 private:
  BlockHash last_;
  const uint32_t block_tokens_;
  std::vector<TokenId> rest_;
};

void append_list(std::string& line, std::string_view name, const std::vector<uint64_t>& ids) {
  line.append(",\"").append(name).append("\":[");
  for (size_t i = 0; i < ids.size(); ++i) line.append(i == 0 ? "" : ",").append(std::to_string(ids[i]));
  line += ']';
}

void append_number(std::string& line, std::string_view name, uint64_t value) {
  line.append(",\"").append(name).append("\":").append(std::to_string(value));
}

size_t size_of(const TracedRequest& request) {
  size_t tokens = request.prompt.size();
  for (const std::vector<TokenId>& output : request.outputs) tokens += output.size();
  return sizeof request + request.cache_salt.size() + tokens * sizeof(TokenId);
}

// What the first line of a file says of its blocks; none when it says nothing or is too long to be one of ours.
std::optional<uint64_t> read_block_tokens(int fd) {
  std::string line;
  std::vector<char> piece(kWriteBytes);
  while (line.find('\n') == std::string::npos && line.size() < kMostQueuedBytes) {
    const ssize_t count = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(line.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    line.append(piece.data(), static_cast<size_t>(count));
  }
  const auto json = parse_json(std::string_view(line).substr(0, line.find('\n')));
  if (!json || !json->is_object()) return std::nullopt;
  const auto size = json->find("block_size");
  if (size == json->end() || !size->is_number_unsigned()) return std::nullopt;
  return size->get<uint64_t>();
}

}  // namespace

std::string trace_line(const TracedRequest& request, std::string_view secret, uint64_t unix_offset_us) {
  const uint64_t unix_us = request.arrival_us + unix_offset_us;
  char time[64];
  std::snprintf(time, sizeof time, "%llu.%03llu", static_cast<unsigned long long>(unix_us / 1000),
                static_cast<unsigned long long>(unix_us % 1000));
  Chain prompt(root_of(secret, request.cache_salt), request.block_tokens);
  std::vector<uint64_t> ids, output_ids;
  prompt.add(request.prompt, ids);
  size_t longest = 0;
  for (const std::vector<TokenId>& output : request.outputs) {
    longest = std::max(longest, output.size());
    // The last token was sampled and never computed, so it fills no block.
    if (!output.empty()) Chain(prompt).add(std::span(output).first(output.size() - 1), output_ids);
  }
  prompt.add_rest(ids);

  std::string line = std::string("{\"timestamp\":") + time;
  append_number(line, "input_length", request.prompt.size());
  append_number(line, "output_length", longest);
  append_list(line, "hash_ids", ids);
  append_number(line, "block_size", request.block_tokens);
  append_number(line, "cached_tokens", request.cached_tokens);
  if (request.outputs.size() > 1) append_number(line, "samples", request.outputs.size());
  line.append(",\"finish\":\"").append(request.finish).append("\"");
  append_list(line, "output_hash_ids", output_ids);
  return line + "}";
}

struct TraceRecorder::Impl {
  ~Impl();
  Status open_file();
  void loop();
  void write_lines(const std::vector<TracedRequest>& requests);
  void write(std::string& lines, uint64_t count);
  bool write_all(std::string_view bytes);

  std::string path;
  int fd = -1;
  bool regular = false;                        // a file, no device
  std::optional<uint64_t> first_block_tokens;  // of the line that was there
  const std::string secret = random_secret();
  uint64_t unix_offset_us = 0;
  bool warned = false;  // the thread's

  std::atomic<uint64_t> written = 0, dropped = 0;
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<TracedRequest> queue;
  size_t queued_bytes = 0;
  bool stopping = false;
  std::thread thread;
};

TraceRecorder::Impl::~Impl() {
  if (thread.joinable()) {
    {
      const std::scoped_lock lock(mutex);
      stopping = true;
    }
    wake.notify_one();
    thread.join();
  }
  if (fd >= 0) ::close(fd);
}

Status TraceRecorder::Impl::open_file() {
  const auto wrong = [this](const std::string& what) {
    return fail(ErrorCode::io, "--record " + kvarto::quoted(path, 500) + ": " + what);
  };
  // Not to hang on a pipe that nobody reads.
  fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) return wrong(system_words() + "; name a file in a folder that can be written");
  struct stat about {};
  if (::fstat(fd, &about) != 0) return wrong(system_words());
  regular = S_ISREG(about.st_mode);
  if (!regular && !S_ISCHR(about.st_mode)) return wrong("is a pipe or a socket; name a file");
  ::fcntl(fd, F_SETFL, O_APPEND);
  if (!regular) return {};
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return wrong("another process writes it; each server needs a file of its own");
  }
  if (about.st_size == 0) return {};
  char first = 0, last = 0;
  if (::pread(fd, &first, 1, 0) != 1 || ::pread(fd, &last, 1, about.st_size - 1) != 1) return wrong(system_words());
  if (first != '{') return wrong("is there already and is no trace; name another file");
  first_block_tokens = read_block_tokens(fd);
  if (last != '\n' && !write_all("\n")) return wrong(system_words());
  return {};
}

bool TraceRecorder::Impl::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// All of `lines` or none of them: half a line would spoil what follows it.
void TraceRecorder::Impl::write(std::string& lines, uint64_t count) {
  struct stat before {};
  const bool known = regular && ::fstat(fd, &before) == 0;
  if (write_all(lines)) {
    written += count;
  } else {
    const std::string why = system_words();
    dropped += count;
    if (known && ::ftruncate(fd, before.st_size) != 0) log(LogLevel::debug, "the trace may end in half a line");
    if (!std::exchange(warned, true)) {
      log(LogLevel::warning, "--record " + kvarto::quoted(path, 500) + ": " + why +
                                 "; requests are missing in the trace, serving goes on "
                                 "(kvarto:trace_dropped_requests_total counts them)");
    }
  }
  lines.clear();
}

void TraceRecorder::Impl::write_lines(const std::vector<TracedRequest>& requests) {
  std::string lines;
  uint64_t count = 0;
  for (const TracedRequest& request : requests) {
    lines += trace_line(request, secret, unix_offset_us) + "\n";
    ++count;
    if (lines.size() >= kWriteBytes) write(lines, std::exchange(count, 0));
  }
  if (count > 0) write(lines, count);
}

void TraceRecorder::Impl::loop() {
  while (true) {
    std::vector<TracedRequest> taken;
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      taken.swap(queue);  // what ends while these are written shares the next write
      queued_bytes = 0;
    }
    write_lines(taken);
  }
}

TraceRecorder::TraceRecorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceRecorder::~TraceRecorder() = default;

Result<std::unique_ptr<TraceRecorder>> TraceRecorder::open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  RETURN_IF_ERROR(impl->open_file());
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  impl->unix_offset_us =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(unix_time).count()) - steady_us();
  impl->thread = std::thread([raw = impl.get()] { raw->loop(); });
  return std::unique_ptr<TraceRecorder>(new TraceRecorder(std::move(impl)));
}

Status TraceRecorder::check_block_tokens(uint32_t block_tokens) const {
  const std::optional<uint64_t> first = impl_->first_block_tokens;
  if (!first || *first == block_tokens) return {};
  return fail(ErrorCode::invalid_argument,
              "--record " + kvarto::quoted(impl_->path, 500) + ": has blocks of " + std::to_string(*first) +
                  " tokens, and this server's have " + std::to_string(block_tokens) +
                  "; name another file, or start with --block-size " + std::to_string(*first));
}

void TraceRecorder::record(TracedRequest request, const RequestResult& result) {
  for (const SampleResult& sample : result.samples) request.outputs.push_back(sample.tokens);
  request.cached_tokens = result.cached_tokens;
  request.finish = finish_reason_name(result.error             ? FinishReason::error
                                      : result.samples.empty() ? FinishReason::cancelled
                                                               : result.samples.front().finish);
  const size_t bytes = size_of(request);
  Impl& s = *impl_;
  bool first = false;
  {
    const std::scoped_lock lock(s.mutex);
    if (s.queued_bytes + bytes > kMostQueuedBytes) {
      ++s.dropped;
      return;
    }
    first = s.queue.empty();
    s.queued_bytes += bytes;
    s.queue.push_back(std::move(request));
  }
  if (first) s.wake.notify_one();
}

TraceCounts TraceRecorder::counts() const { return {impl_->written, impl_->dropped}; }

}  // namespace kvarto
