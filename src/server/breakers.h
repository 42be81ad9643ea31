// PrefixBreakers: what keeps prompts from finding what is cached, although they begin like a known prompt: a date in
// the system prompt, tools in another order, a history that was stamped anew. Told of near misses, it finds the message
// and line in which they part, puts those of one line together, and keeps the costliest. Parting in the last message
// of a chat (the new question) is how chats are and is no breaker, nor is a beginning of a few letters. Holds text only
// when made with `keep_text`; hashes are keyed with `secret`, so that nobody can guess a line from its hash. Owned by
// the server; calls from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvarto/kv_cache.h"
#include "kvarto/types.h"

namespace kvarto {

struct PrefixBreakerOptions {
  size_t max_kept = 64;  // lines
  bool keep_text = false;
  std::string secret = {};  // random bytes of this process
};

// A prompt that parts from a known one.
struct PartedPrompt {
  std::span<const TokenId> ids;
  NearMiss near;
  // Of a chat, as ApiRequest has them: JSON texts, empty when there are none.
  std::string_view messages = {}, tools = {};
};

enum class PromptPlace : uint8_t {
  prompt,         // no chat
  tools,          // one of the tools, rendered into the template
  template_text,  // what the template itself says, or nothing that could be told apart from it
  message,
};
std::string_view prompt_place_name(PromptPlace place);  // "message"

// Where a prompt parts: one line of one message.
struct BrokenLine {
  size_t offset = 0;  // in the text, where the prompts part
  PromptPlace place = PromptPlace::prompt;
  std::string role = {};     // of the message
  uint32_t index = 0;        // of the message or tool
  size_t line_begin = 0;     // bytes of the prompt's text
  size_t line_end = 0;       //
  size_t part_begin = 0;     // in front of the line in the message (of other places: in front of it in the prompt)
  uint64_t lost_tokens = 0;  // from there to the chat's last message: they would have been found
  bool usual = false;        // in the last message of a chat, or right at the beginning: no breaker
};
// `text`: what the ids spell; `ends`: [ids] where each token ends in it.
BrokenLine locate_parting(std::string_view text, std::span<const size_t> ends, const PartedPrompt& parted);

// Prompts that part in one line.
struct PrefixBreaker {
  PromptPlace place = PromptPlace::prompt;
  std::string role = {};
  uint32_t index = 0;
  uint64_t count = 0, lost_tokens = 0;  // all of them together
  uint64_t position = 0;                // token of the last one; the first that differs
  size_t line_bytes = 0;                // length of the last one's line
  size_t part_begin = 0;                // bytes of the message in front of the line
  std::string hash = {};                // of the last one's line, 12 hex digits
  // With keep_text only.
  std::string line = {}, earlier_line = {};  // of the last one and the last one that was different; shortened
  std::string known_piece = {};              // the token that the known prompt has there
  std::string rule = {};                     // for --volatile-text, when there is one for both lines
};

class PrefixBreakers {
 public:
  using Piece = std::function<std::string(TokenId id)>;  // bytes of a token, those of control tokens included

  PrefixBreakers(PrefixBreakerOptions options, Piece piece);

  // True when it is a breaker.
  bool add(const PartedPrompt& parted);
  // At most `most` of those that are kept, those that cost the most tokens first.
  std::vector<PrefixBreaker> top(size_t most) const;
  uint64_t seen() const;         // breakers, each time
  uint64_t near_misses() const;  // these and the usual partings
  void clear();

 private:
  void tell_text(PrefixBreaker& breaker, std::string_view line, const NearMiss& near) const;
  std::string keyed_hash(std::string_view text) const;
  void make_room();

  const PrefixBreakerOptions options_;
  const Piece piece_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, PrefixBreaker> kept_;  // by the hash of what all that part there share
  uint64_t seen_ = 0, near_misses_ = 0;
};

}  // namespace kvarto
