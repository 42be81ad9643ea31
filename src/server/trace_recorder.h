// TraceRecorder: `--record FILE`: a line of JSON per finished request, without text, in the form that trace replay
// reads (Mooncake's, see docs/http_api.md). Block ids are hashes under a secret of this process, so nobody can find out
// from them what a prompt said; equal beginnings under equal cache salts have equal ids. One thread of its own writes;
// record() from any thread, it never waits for the disk. Owned by the server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/engine.h"
#include "kvarto/result.h"

namespace kvarto {

struct TraceCounts {
  uint64_t written = 0;
  uint64_t dropped = 0;  // the file could not be written, or not as fast as requests ended
};

// A prompt that the engine accepted, and what became of it.
struct TracedRequest {
  uint64_t arrival_us = 0;  // steady_us()
  uint32_t block_tokens = 16;
  std::string cache_salt = {};
  std::vector<TokenId> prompt = {};
  // Filled in by record():
  std::vector<std::vector<TokenId>> outputs = {};  // [samples]
  uint64_t cached_tokens = 0;
  std::string_view finish = {};  // "stop"; of the first sample
};

// The line, without its end. `unix_offset_us`: what to add to steady times.
//   timestamp        when it arrived, in ms since 1970
//   input_length     tokens of the prompt
//   output_length    tokens that were generated, of the longest sample; "samples" tells their number when it is not 1
//   hash_ids         of the prompt's blocks, the last one maybe not full; an id stands for its block and all before it
//   block_size, cached_tokens, finish
//   output_hash_ids  of the blocks that answers filled, sample after sample: what a later prompt may find
std::string trace_line(const TracedRequest& request, std::string_view secret, uint64_t unix_offset_us);

class TraceRecorder {
 public:
  // Appends to what is there. Errors: what cannot be written, is no file, is no trace, or is written by another server.
  static Result<std::unique_ptr<TraceRecorder>> open(const std::string& path);
  ~TraceRecorder();  // what was recorded is written
  // An error when the file began with blocks of another size: ids of both in one file fit no reader.
  Status check_block_tokens(uint32_t block_tokens) const;

  void record(TracedRequest request, const RequestResult& result);
  TraceCounts counts() const;

 private:
  struct Impl;
  explicit TraceRecorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
