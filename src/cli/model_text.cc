#include "cli/model_text.h"

#include <nlohmann/json.hpp>

#include "text/chat_template.h"

namespace kvarto {

Result<ModelText> ModelText::read(const GgufFile& file) {
  ModelText text;
  ASSIGN_OR_RETURN(text.tokenizer, Tokenizer::from_gguf(file));
  ASSIGN_OR_RETURN(const std::optional<std::string_view> source, file.get_string("tokenizer.chat_template"));
  text.chat_template = source.value_or("");
  return text;
}

Result<std::string> ModelText::render(nlohmann::ordered_json context) const {
  if (chat_template.empty()) {
    return fail(ErrorCode::not_found, "the model has no chat template; use `kvarto tokenize` for plain text");
  }
  ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::parse(chat_template));
  const Vocabulary& vocabulary = tokenizer->vocabulary();
  if (vocabulary.bos) context["bos_token"] = vocabulary.tokens[static_cast<size_t>(*vocabulary.bos)];
  if (vocabulary.eos) context["eos_token"] = vocabulary.tokens[static_cast<size_t>(*vocabulary.eos)];
  return chat.render(context);
}

}  // namespace kvarto
