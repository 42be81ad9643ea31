#include "engine/chat.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kProbe = "kvartoprobe";

// Whether a template shows the text of a message with this content, and only that.
bool shows(const ChatTemplate& chat, Json context, Json content) {
  context["messages"] = Json::array({{{"role", "user"}, {"content", std::move(content)}}});
  context["add_generation_prompt"] = true;
  const Result<std::string> text = chat.render(context);
  if (!text || text->find(kProbe) == std::string::npos) return false;
  return text->find("'type'") == std::string::npos && text->find("\"type\"") == std::string::npos;
}

Json part_of(std::string_view text) { return {{"type", "text"}, {"text", text}}; }

// The text of one part of a content.
Result<std::string> part_text(const Json& part, const std::string& where) {
  if (part.is_string()) return part.get<std::string>();
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (type == part.end() || !type->is_string()) {
    return fail(ErrorCode::invalid_argument,
                where + R"( is not a part of a content; it looks like {"type":"text","text":"..."})");
  }
  const std::string name = type->get<std::string>();
  const bool known = name == "text" || name == "input_text" || name == "output_text" || name == "refusal";
  if (!known) {
    return fail(ErrorCode::unsupported, where + " is of type " + type->dump() + "; this model reads text only");
  }
  const auto text = part.find(name == "refusal" ? "refusal" : "text");
  if (text == part.end() || !text->is_string()) return fail(ErrorCode::invalid_argument, where + " has no text");
  return text->get<std::string>();
}

struct ContentRules {
  bool text = true, parts = false;  // what may be passed on
};

// Null becomes "", parts become one text or the other way round, as the rules want.
Result<Json> normal_content(const Json& content, ContentRules rules, const std::string& where) {
  std::vector<std::string> texts;
  if (content.is_string()) {
    if (rules.text) return content;
    texts.push_back(content.get<std::string>());
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      ASSIGN_OR_RETURN(std::string text, part_text(content[i], where + "[" + std::to_string(i) + "]"));
      texts.push_back(std::move(text));
    }
    if (!rules.parts) {
      std::string joined;
      for (size_t i = 0; i < texts.size(); ++i) joined += (i > 0 ? "\n" : "") + texts[i];
      return Json(std::move(joined));
    }
  } else if (!content.is_null()) {
    return fail(ErrorCode::invalid_argument, where + " is neither a text nor a list of parts nor null");
  } else if (rules.text) {
    return Json("");
  }
  Json parts = Json::array();
  for (const std::string& text : texts) parts.push_back(part_of(text));
  return parts;
}

// The API sends arguments as a JSON text; templates go over them as an object. True when something was changed.
bool open_arguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return false;
  bool changed = false;
  for (Json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    Json& function = call["function"];
    const auto arguments = function.find("arguments");
    if (arguments == function.end()) continue;
    if (arguments->is_null() || *arguments == "") {
      *arguments = Json::object();
    } else if (arguments->is_string()) {
      Result<Json> parsed = parse_json(arguments->get_ref<const std::string&>());
      if (!parsed || !parsed->is_object()) continue;  // what a model wrote may be no JSON; it is shown as it was
      *arguments = *std::move(parsed);
      changed = true;
    }
  }
  return changed;
}

Result<Json> read_messages(std::string_view text) {
  Result<Json> messages = parse_json(text);
  if (!messages && messages.error().code != ErrorCode::corrupt) {
    return fail(messages.error().code, "messages: " + messages.error().message);
  }
  if (!messages || !messages->is_array() || messages->empty()) {
    return fail(ErrorCode::invalid_argument,
                "messages are not a JSON array with at least one message; each is an object with role and content");
  }
  return messages;
}

Result<Json> read_optional(std::string_view text, const char* name, bool object) {
  if (text.empty()) return Json(nullptr);
  Result<Json> value = parse_json(text);
  if (!value) return fail(ErrorCode::invalid_argument, std::string(name) + ": " + value.error().message);
  if (object ? !value->is_object() : !value->is_array()) {
    return fail(ErrorCode::invalid_argument, std::string(name) + " are not a JSON " + (object ? "object" : "array"));
  }
  return value;
}

Status merge_kwargs(const Json& kwargs, Json& context) {
  static constexpr std::array<std::string_view, 4> kReserved = {"messages", "chat_template", "tokenize",
                                                                "continue_final_message"};
  for (const auto& [key, value] : kwargs.items()) {
    if (std::ranges::find(kReserved, key) != kReserved.end()) {
      return fail(ErrorCode::invalid_argument, "chat_template_kwargs may not set " + key + "; use the request's field");
    }
    context[key] = value;
  }
  return {};
}

std::string_view strip_front(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n\r\f\v");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}
std::string_view strip(std::string_view text) {
  return strip_front(text.substr(0, text.find_last_not_of(" \t\n\r\f\v") + 1));
}

// Cuts behind the last message, as transformers does: the last place that shows its text; spaces at its end stay where
// the template left them.
Result<std::string> cut_after(std::string rendered, const Json& content) {
  const Json& last = content.is_array() && !content.empty() ? content.back()["text"] : content;
  const std::string final_text = last.is_string() ? last.get<std::string>() : "";
  const std::string_view core = strip(final_text);
  const size_t place = core.empty() ? std::string::npos : rendered.rfind(core);
  if (place == std::string::npos) {
    return fail(ErrorCode::invalid_argument,
                core.empty() ? "continue_final_message: the last message has no text to continue"
                             : "continue_final_message: the chat template does not show the last message's text, so "
                               "there is no place to continue from; leave it out");
  }
  const size_t whole = strip_front(final_text).size();
  const bool kept = std::string_view(rendered).substr(place, whole) == final_text;
  rendered.resize(place + (kept ? whole : core.size()));
  return rendered;
}

}  // namespace

ChatRenderer::ChatRenderer(std::string own, std::shared_ptr<const Tokenizer> tokenizer)
    : own_text_(std::move(own)), tokenizer_(std::move(tokenizer)) {}

Json ChatRenderer::special_tokens() const {
  Json context = Json::object();
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  if (tokenizer_ == nullptr) return context;
  const Vocabulary& vocabulary = tokenizer_->vocabulary();
  if (vocabulary.bos) context["bos_token"] = vocabulary.tokens[static_cast<size_t>(*vocabulary.bos)];
  if (vocabulary.eos) context["eos_token"] = vocabulary.tokens[static_cast<size_t>(*vocabulary.eos)];
  return context;
}

ChatRenderer::Found ChatRenderer::parse(std::string text) const {
  ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::parse(std::move(text)));
  auto parsed = std::make_shared<Parsed>(Parsed{.chat = std::move(chat)});
  parsed->takes_text = shows(parsed->chat, special_tokens(), kProbe);
  parsed->takes_parts = shows(parsed->chat, special_tokens(), Json::array({part_of(kProbe)}));
  return std::shared_ptr<const Parsed>(std::move(parsed));
}

ChatRenderer::Found ChatRenderer::find(std::string_view text) const {
  if (text.empty()) {
    if (own_text_.empty()) {
      return fail(ErrorCode::not_found, "the model has no chat template; give it a plain prompt");
    }
    std::call_once(own_once_, [&] { own_ = parse(own_text_); });
    return *own_;
  }
  const auto take = [&]() -> std::shared_ptr<const Parsed> {
    const auto found = std::ranges::find_if(kept_, [&](const auto& kept) { return kept->chat.source() == text; });
    if (found == kept_.end()) return nullptr;
    std::rotate(found, found + 1, kept_.end());
    return kept_.back();
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto known = take()) return known;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Parsed> parsed, parse(std::string(text)));  // may take a while: not locked
  const std::lock_guard lock(mutex_);
  if (auto known = take()) return known;
  if (kept_.size() == kMostKept) kept_.erase(kept_.begin());
  kept_.push_back(parsed);
  return parsed;
}

Status ChatRenderer::check(std::string_view text) const {
  const Found found = find(text);
  if (!found) return tl::unexpected<Error>(found.error());
  return {};
}

Result<std::string> ChatRenderer::render(const ChatContext& request) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Parsed> parsed, find(request.chat_template));
  Json context = special_tokens();
  context["add_generation_prompt"] = request.add_generation_prompt;
  ASSIGN_OR_RETURN(context["messages"], read_messages(request.messages));
  ASSIGN_OR_RETURN(context["tools"], read_optional(request.tools, "tools", false));
  ASSIGN_OR_RETURN(context["documents"], read_optional(request.documents, "documents", false));
  ASSIGN_OR_RETURN(const Json kwargs, read_optional(request.kwargs, "chat_template_kwargs", true));
  RETURN_IF_ERROR(merge_kwargs(kwargs, context));
  if (request.continue_final_message && context["add_generation_prompt"] == true) {
    return fail(ErrorCode::invalid_argument,
                "continue_final_message and add_generation_prompt exclude each other; set one of them");
  }

  ContentRules rules{.text = request.content_format == ContentFormat::string, .parts = false};
  if (request.content_format == ContentFormat::parts) rules.parts = true;
  if (request.content_format == ContentFormat::automatic) {
    rules = {.text = parsed->takes_text || !parsed->takes_parts, .parts = parsed->takes_parts};
  }
  Json& messages = context["messages"];
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) return fail(ErrorCode::invalid_argument, where + " is not an object");
    Json& content = messages[i]["content"];
    ASSIGN_OR_RETURN(content, normal_content(content, rules, where + ".content"));
  }
  Json opened = context;
  bool changed = false;
  for (Json& message : opened["messages"]) changed |= open_arguments(message);

  Result<std::string> text = parsed->chat.render(opened);
  if (!text && changed) {  // some templates put arguments into the text as they are
    if (Result<std::string> with_texts = parsed->chat.render(context)) text = std::move(with_texts);
  }
  if (!text || !request.continue_final_message) return text;
  return cut_after(*std::move(text), messages.back()["content"]);
}

}  // namespace kvarto
