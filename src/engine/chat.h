// ChatRenderer: from messages as the API has them to the text of a prompt: contents and tool calls in the form that the
// template wants, its further variables, and the cut where the last message is to be continued. Owned by the engine;
// any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/engine.h"
#include "kvarto/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvarto {

class ChatRenderer {
 public:
  // `own`: the model's template, "" = none. Parsed when it is first needed.
  ChatRenderer(std::string own, std::shared_ptr<const Tokenizer> tokenizer);

  Result<std::string> render(const ChatContext& context) const;
  // Parses a template, "" = the model's own.
  Status check(std::string_view text) const;

 private:
  // A parsed template and what it does with contents, found out by rendering.
  struct Parsed {
    ChatTemplate chat;
    bool takes_text = false, takes_parts = false;
  };
  using Found = Result<std::shared_ptr<const Parsed>>;
  Found parse(std::string text) const;
  Found find(std::string_view text) const;
  nlohmann::ordered_json special_tokens() const;

  static constexpr size_t kMostKept = 16;

  const std::string own_text_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  mutable std::once_flag own_once_;
  mutable std::optional<Found> own_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Parsed>> kept_;  // given by text; the last one used is the last
};

}  // namespace kvarto
