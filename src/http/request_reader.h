// RequestReader: bytes of one connection in, whole HTTP/1.1 requests out, one after the other. What breaks the protocol
// or a limit becomes a Refusal, after which nothing more can be read. Heads are parsed by Beast (request_reader.cc
// alone includes its parser), bodies here. Owned by its connection; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"

namespace kvarto {

struct ReadLimits {
  size_t header_bytes, headers, body_bytes;
};

struct Refusal {
  int status = 400;
  std::string message;  // one line
};

class RequestReader {
 public:
  enum class State { idle, head, body, complete, refused };

  explicit RequestReader(ReadLimits limits);
  ~RequestReader();

  // Takes from the front of `bytes` what belongs to the current request and says how much. The rest has to be offered
  // again, with more behind it, or once the request was released.
  size_t take(std::string_view bytes);
  State state() const { return state_; }
  const Refusal& refusal() const { return refusal_; }

  // Of the request whose head is complete.
  bool wants_continue() const { return wants_continue_ && state_ == State::body && !body_begun_; }
  bool keep_alive() const { return keep_alive_; }
  bool http_1_0() const { return http_1_0_; }
  bool is_head() const { return request_.method == "HEAD"; }  // also while the rest of the head is missing
  uint64_t body_received() const { return request_.body.size(); }
  uint64_t body_announced() const { return announced_; }     // 0: it comes in chunks, or there is none
  const ServerRequest& request() const { return request_; }  // as far as it was read
  void drop_body() { std::string().swap(request_.body); }    // of a request that will not be released

  ServerRequest release();  // the complete request; the reader begins the next one

 private:
  class HeadParser;
  enum class BodyPart { counted, chunk_size, chunk_data, chunk_end, trailers };

  size_t take_head(std::string_view bytes, bool& more);
  size_t take_body(std::string_view bytes, bool& more);
  size_t take_line(std::string_view bytes, size_t limit, bool& more, std::optional<std::string_view>& line);
  void head_done();
  bool read_target(std::string_view target);
  bool check_fields();
  void read_chunk_size(std::string_view line);
  void refuse(int status, std::string message);
  void restart();

  const ReadLimits limits_;
  State state_ = State::idle;
  Refusal refusal_;
  std::unique_ptr<HeadParser> parser_;
  ServerRequest request_;
  size_t head_bytes_ = 0;
  bool keep_alive_ = false, http_1_0_ = false, wants_continue_ = false, body_begun_ = false;
  BodyPart part_ = BodyPart::counted;
  uint64_t part_left_ = 0;  // bytes of the body, or of its current chunk, still to come
  size_t trailer_bytes_ = 0;
  uint64_t announced_ = 0;
};

}  // namespace kvarto
