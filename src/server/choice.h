// Choice: one output of a reply: the text that came so far, split into what the API shows apart (content, reasoning,
// tool calls), and its logprobs in the API's shapes. Front thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvarto/engine.h"
#include "server/reasoning_parser.h"
#include "server/tool_parser.h"

namespace kvarto {

struct ChoiceOptions {
  bool chat = false;
  std::optional<uint32_t> logprobs;            // alternatives shown per token
  bool tokens_as_ids = false;                  // "token_id:7" for the text of a token in logprobs
  const ToolFormat* tools = nullptr;           // null: calls stay text
  const ReasoningFormat* reasoning = nullptr;  // null: thoughts stay text
  bool show_reasoning = true;
  bool parallel_calls = true;  // false: only the first call is shown
  std::string role = "assistant";
};

// What one piece of text adds to a reply.
struct ChoiceDelta {
  std::string reasoning, content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

class Choice {
 public:
  // `prompt`: the rendered text that this continues.
  Choice(uint32_t index, const ChoiceOptions& options, std::string_view prompt);

  // Streams: what this piece shows now. `at_end`: nothing follows.
  ChoiceDelta add(std::string_view text, bool at_end);
  // "tool_calls" when calls were made, else the engine's own.
  std::string_view finish_name(FinishReason reason) const;
  // Makes all of a finished sample pending, for replies in one piece.
  void take_whole(const SampleResult& sample);
  void clear_pending();

  const uint32_t index;
  bool role_sent = false, ids_sent = false, scores_sent = false;
  bool ended = false;  // its last chunk went out
  std::string echo;    // of the prompt, in front of the next chunk's text
  // Gathered until the next chunk goes out.
  std::string pending_text;
  std::vector<TokenId> pending_tokens;
  std::vector<TokenLogprob> pending_logprobs;
  std::vector<std::vector<TokenLogprob>> pending_top;
  uint32_t pending = 0;
  uint64_t generated = 0, text_offset = 0;

 private:
  std::optional<ReasoningParser> reasoning_;
  std::unique_ptr<ToolParser> tools_;
  bool show_reasoning_, parallel_calls_;
};

// The API's logprobs object of consecutive tokens. `text_offset` (completions): of the first token in the text;
// advanced.
nlohmann::ordered_json logprobs_json(const Engine& engine, const ChoiceOptions& options,
                                     std::span<const TokenId> tokens, std::span<const TokenLogprob> chosen,
                                     std::span<const std::vector<TokenLogprob>> top, uint64_t& text_offset);
// Completions with echo: puts the prompt's tokens in front.
void put_prompt_logprobs(const Engine& engine, const ChoiceOptions& options, std::span<const PromptLogprob> scores,
                         nlohmann::ordered_json& logprobs);

}  // namespace kvarto
