// TurnMemory: the token ids of finished turns, so that a prompt that holds an earlier answer word for word gets the ids
// that were generated, not those that its text would be cut into, and finds their blocks in the prefix cache. What is
// spliced in always spells the same text. Bounded by turns and by bytes; chats unused for longest are forgotten first.
// Owned by the server; calls from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvarto/result.h"
#include "kvarto/types.h"

namespace kvarto {

struct TurnMemoryOptions {
  size_t max_turns = 4096;  // 0: nothing is remembered
  size_t max_bytes = size_t{64} << 20;
};

struct TurnMemoryCounts {
  uint64_t lookups = 0, hits = 0, tokens_spliced = 0;  // tokens: all ids that came from memory
  uint64_t refused = 0;  // turns and texts whose ids do not spell them: not kept, not spliced
  size_t turns = 0, chats = 0, bytes = 0;
};

// A finished turn. `scope` is the cache salt and whatever else decides which ids a text becomes. The prompt is the
// whole rendered text and the ids it ran with; the output is what was generated: text with the spellings of control
// tokens that it shows, and ids, which may go on behind the text (stop token, stop string).
struct TurnOutput {
  std::string_view text;
  std::span<const TokenId> ids;
};
struct Turn {
  std::string_view scope, prompt_text;
  std::span<const TokenId> prompt_ids;
  std::span<const TurnOutput> outputs;  // one of each sample; the prompt is looked at once for all of them
};

class TurnMemory {
 public:
  // Bytes of a token; `special`: a control token's spelling, else control tokens have none.
  using Piece = std::function<std::string(TokenId id, bool special)>;
  // Ids of text that stands inside a prompt: special tokens parsed, no BOS.
  using Encode = std::function<Result<std::vector<TokenId>>(std::string_view text)>;

  TurnMemory(TurnMemoryOptions options, Piece piece);

  // Keeps what is needed of the turn: of each output as many whole tokens as its text begins with. A prompt whose ids
  // do not spell its text (one that was truncated) is not kept.
  void remember(const Turn& turn);
  // The ids of `text` if it begins with a remembered prompt and all of its answer (white space at the answer's end may
  // have been trimmed): the remembered ids, and what `encode` makes of the rest. Nothing: encode it all.
  std::optional<std::vector<TokenId>> splice(std::string_view scope, std::string_view text, const Encode& encode);
  TurnMemoryCounts counts() const;

 private:
  // Where a turn's answer ends. Two per turn when white space follows its last word.
  struct Mark {
    size_t text_end, ids_end;
    uint64_t key;  // of scope and text up to here
    size_t turn;   // its number in the chat
  };
  // A chat: the text of its last turn, prompt and answer, with the ids; each turn's text begins with the one before.
  struct Chat {
    std::string scope, text;
    std::vector<TokenId> ids;
    std::vector<Mark> marks;
    size_t turns = 0;
    size_t bytes() const;
  };
  using Chats = std::list<Chat>;  // last used first
  struct Place {
    Chats::iterator chat;
    size_t mark;
  };

  // An output as it is kept: its whole tokens, and those of its last word, with where they end in the text.
  struct Cut {
    std::string_view text;  // of the whole tokens
    std::span<const TokenId> ids;
    size_t word_end = 0, word_tokens = 0;
  };

  Cut cut(const TurnOutput& output) const;
  std::optional<Place> find(std::string_view scope, std::string_view text);
  // What of the turn's prompt is remembered already, with the same ids.
  std::optional<Place> known_part(const Turn& turn);
  // The chat to which a turn of that scope is added: the one that it goes on with, a copy of its beginning, or a new
  // one.
  Chats::iterator chat_for(std::string_view scope, const std::optional<Place>& known);
  void add_mark(Chats::iterator chat, const Mark& mark);
  void drop_marks(Chats::iterator chat, size_t from);
  void forget(Chats::iterator chat);
  std::string spell(std::span<const TokenId> ids) const;
  bool same_prompt(std::string_view text, std::span<const TokenId> ids) const;
  bool same_text(std::string_view text, std::span<const TokenId> ids) const;

  const TurnMemoryOptions options_;
  const Piece piece_;
  mutable std::mutex mutex_;
  Chats chats_;
  std::unordered_map<uint64_t, Place> places_;  // by Mark::key; a later mark with the same key takes its place
  std::unordered_map<std::string, std::map<size_t, size_t>> lengths_;  // by scope: text_end -> how many marks have it
  TurnMemoryCounts counts_;
};

}  // namespace kvarto
