#include "server/choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "server/api_body.h"
#include "server/reply_json.h"

namespace kvarto {

using Json = nlohmann::ordered_json;

namespace {

constexpr float kLowestLogprob = -9999.0f;  // what JSON shows for minus infinity

float finite(float logprob) { return std::max(logprob, kLowestLogprob); }

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

Json chat_logprob(const Engine& engine, const ChoiceOptions& options, const TokenLogprob& at) {
  return {{"token", shown_token(engine, at.token, options.tokens_as_ids)},
          {"logprob", finite(at.logprob)},
          {"bytes", bytes_of(engine.piece(at.token, true))}};
}

void add_parsed(ChoiceDelta& delta, AnswerDelta parsed, bool parallel) {
  delta.content += parsed.content;
  for (ToolCallDelta& call : parsed.calls) {
    if (parallel || call.index == 0) delta.tool_calls.push_back(std::move(call));
  }
}

}  // namespace

Choice::Choice(uint32_t choice_index, const ChoiceOptions& options, std::string_view prompt)
    : index(choice_index), show_reasoning_(options.show_reasoning), parallel_calls_(options.parallel_calls) {
  if (options.reasoning != nullptr) reasoning_.emplace(*options.reasoning, prompt);
  if (options.tools != nullptr) tools_ = options.tools->make({.random = random_bits});
}

ChoiceDelta Choice::add(std::string_view text, bool at_end) {
  ChoiceDelta delta;
  const auto add_content = [&](std::string content) {
    if (tools_ == nullptr) {
      delta.content += content;
      return;
    }
    add_parsed(delta, tools_->push(content), parallel_calls_);
  };
  if (!reasoning_) {
    add_content(std::string(text));
  } else {
    const auto add_split = [&](ReasoningDelta split) {
      if (show_reasoning_) delta.reasoning += split.reasoning;
      add_content(std::move(split.content));
    };
    add_split(reasoning_->push(text));
    if (at_end) add_split(reasoning_->finish());
  }
  if (at_end && tools_ != nullptr) add_parsed(delta, tools_->finish(), parallel_calls_);
  return delta;
}

std::string_view Choice::finish_name(FinishReason reason) const {
  switch (reason) {
    case FinishReason::stop:
      return tools_ != nullptr && tools_->calls() > 0 ? "tool_calls" : "stop";
    case FinishReason::cancelled:
      return "abort";
    default:
      return finish_reason_name(reason);
  }
}

void Choice::take_whole(const SampleResult& sample) {
  pending_text = sample.text;
  pending_tokens = sample.tokens;
  pending_logprobs = sample.token_logprobs;
  pending_top = sample.top_logprobs;
  generated = sample.tokens.size();
}

void Choice::clear_pending() {
  pending_text.clear();
  pending_tokens.clear();
  pending_logprobs.clear();
  pending_top.clear();
  pending = 0;
}

Json logprobs_json(const Engine& engine, const ChoiceOptions& options, std::span<const TokenId> tokens,
                   std::span<const TokenLogprob> chosen, std::span<const std::vector<TokenLogprob>> top,
                   uint64_t& text_offset) {
  if (options.chat) {
    Json content = Json::array();
    for (size_t i = 0; i < chosen.size(); ++i) {
      Json row = chat_logprob(engine, options, chosen[i]);
      Json others = Json::array();
      if (i < top.size()) {
        for (const TokenLogprob& other : top[i]) others.push_back(chat_logprob(engine, options, other));
      }
      row["top_logprobs"] = std::move(others);
      content.push_back(std::move(row));
    }
    return {{"content", std::move(content)}};
  }
  Json offsets = Json::array(), values = Json::array(), texts = Json::array(), tops = Json::array();
  for (size_t i = 0; i < tokens.size() && i < chosen.size(); ++i) {
    const std::string text = shown_token(engine, tokens[i], options.tokens_as_ids);
    offsets.push_back(text_offset);
    text_offset += count_characters(engine.piece(tokens[i], false));
    values.push_back(finite(chosen[i].logprob));
    texts.push_back(text);
    Json best = Json::object();
    if (i < top.size()) {
      for (const TokenLogprob& other : top[i]) {
        best[shown_token(engine, other.token, options.tokens_as_ids)] = finite(other.logprob);
      }
    }
    best[text] = finite(chosen[i].logprob);  // the sampled one, also outside the best
    tops.push_back(options.logprobs.value_or(0) > 0 ? std::move(best) : Json(nullptr));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(values)},
          {"tokens", std::move(texts)},
          {"top_logprobs", std::move(tops)}};
}

void put_prompt_logprobs(const Engine& engine, const ChoiceOptions& options, std::span<const PromptLogprob> scores,
                         Json& logprobs) {
  Json offsets = Json::array(), values = Json::array(), texts = Json::array(), tops = Json::array();
  uint64_t offset = 0;
  for (const PromptLogprob& at : scores) {
    const std::string text = shown_token(engine, at.token, options.tokens_as_ids);
    offsets.push_back(offset);
    offset += count_characters(engine.piece(at.token, false));
    texts.push_back(text);
    if (!at.logprob) {
      values.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    values.push_back(finite(*at.logprob));
    Json best = Json::object();
    for (const TokenLogprob& other : at.top) {
      best[shown_token(engine, other.token, options.tokens_as_ids)] = finite(other.logprob);
    }
    best[text] = finite(*at.logprob);
    tops.push_back(std::move(best));
  }
  const auto join = [&](const char* key, Json& front) {
    for (Json& value : logprobs[key]) front.push_back(std::move(value));
    logprobs[key] = std::move(front);
  };
  join("text_offset", offsets);
  join("token_logprobs", values);
  join("tokens", texts);
  join("top_logprobs", tops);
}

}  // namespace kvarto
