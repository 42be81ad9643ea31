// The engine's text side: tokenizer and chat template. Const; any thread.
#include "engine/engine_impl.h"

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

std::string Engine::piece(TokenId id, bool special) const {
  const Tokenizer* tokenizer = impl_->parts.tokenizer.get();
  return tokenizer == nullptr ? std::string() : tokenizer->piece(id, special);
}

bool Engine::begins_with_bos(std::string_view text) const {
  const Tokenizer* tokenizer = impl_->parts.tokenizer.get();
  return tokenizer != nullptr && tokenizer->begins_with_bos(text);
}

std::string_view Engine::chat_template() const { return impl_->parts.chat_template; }
bool Engine::has_chat_template() const { return !impl_->parts.chat_template.empty(); }

Status Engine::check_chat_template(std::string_view chat_template) const { return impl_->chat.check(chat_template); }

Result<std::string> Engine::render_chat(const ChatContext& context) const { return impl_->chat.render(context); }

Result<std::string> Engine::render_chat(std::string_view messages_json, bool add_generation_prompt) const {
  return render_chat({.messages = messages_json, .add_generation_prompt = add_generation_prompt});
}

}  // namespace kvarto
