// The engine's text side: tokenizer and chat template. Const; any thread.
#include <nlohmann/json.hpp>

#include "engine/engine_impl.h"
#include "text/json_text.h"

namespace kvarto {

Result<std::vector<TokenId>> Engine::encode(std::string_view text, bool plain, bool bos) const {
  const Tokenizer* tokenizer = impl_->parts.tokenizer.get();
  if (tokenizer == nullptr) return fail(ErrorCode::unsupported, "this engine has no tokenizer; give token ids");
  return tokenizer->encode(text, {.parse_special = !plain, .add_bos = bos});
}

std::string Engine::decode(std::span<const TokenId> ids, bool special) const {
  const Tokenizer* tokenizer = impl_->parts.tokenizer.get();
  return tokenizer == nullptr ? std::string() : tokenizer->decode(ids, special);
}

std::vector<TokenId> Engine::stop_ids() const {
  const Tokenizer* tokenizer = impl_->parts.tokenizer.get();
  return tokenizer == nullptr ? std::vector<TokenId>() : tokenizer->stop_ids();
}

bool Engine::has_chat_template() const { return !impl_->parts.chat_template.empty(); }

Result<std::string> Engine::render_chat(std::string_view messages_json, bool add_generation_prompt) const {
  if (!has_chat_template()) {
    return fail(ErrorCode::not_found, "the model has no chat template; give it a plain prompt");
  }
  std::call_once(impl_->template_once, [&] { impl_->chat = ChatTemplate::parse(impl_->parts.chat_template); });
  const Result<ChatTemplate>& chat = *impl_->chat;
  if (!chat) return tl::unexpected<Error>(chat.error());
  nlohmann::ordered_json context;
  Result<nlohmann::ordered_json> messages = parse_json(messages_json);
  if (!messages && messages.error().code != ErrorCode::corrupt) {
    return fail(messages.error().code, "messages: " + messages.error().message);
  }
  if (messages) context["messages"] = *std::move(messages);
  if (!context["messages"].is_array() || context["messages"].empty()) {
    return fail(ErrorCode::invalid_argument,
                "messages are not a JSON array with at least one message; each is an object with role and content");
  }
  context["add_generation_prompt"] = add_generation_prompt;
  if (const Tokenizer* tokenizer = impl_->parts.tokenizer.get()) {
    const Vocabulary& vocabulary = tokenizer->vocabulary();
    if (vocabulary.bos) context["bos_token"] = vocabulary.tokens[static_cast<size_t>(*vocabulary.bos)];
    if (vocabulary.eos) context["eos_token"] = vocabulary.tokens[static_cast<size_t>(*vocabulary.eos)];
  }
  return chat->render(context);
}

}  // namespace kvarto
