// Traces of requests without text. Two forms are read:
//   JSONL (Mooncake's, and what `kvarto serve --record` writes): {"timestamp": ms, "input_length": tokens,
//     "output_length": tokens, "hash_ids": [...]}; an id, a number or a string, stands for a block of the prompt and
//     everything before it. "block_size" may name the tokens of a block; else the lengths tell.
//   CSV (Azure's): TIMESTAMP,ContextTokens,GeneratedTokens; no ids.
// Plain data; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

struct TraceRequest {
  double arrival_s = 0;  // since the first one
  uint32_t input_tokens = 0, output_tokens = 0;
  std::vector<uint64_t> blocks;
};

struct Trace {
  uint32_t block_tokens = 0;  // 0: no request has blocks
  std::vector<TraceRequest> requests;
};

// `block_tokens`: 0: found out. Requests come out in the order of their arrival.
Result<Trace> parse_trace(std::string_view text, uint32_t block_tokens);

// Lengths and blocks times `scale`, times divided by `speed`.
Trace scaled(Trace trace, double scale, double speed);

}  // namespace kvarto
