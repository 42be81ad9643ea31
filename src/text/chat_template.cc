#include "text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace kvarto {

struct ChatTemplate::Impl {
  std::string source;
  std::unique_ptr<const jinja::Tree> tree;
};

namespace {

// Templates may raise words with line ends in them; an Error is one line.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string describe(const jinja::JinjaError& e) {
  return "chat template, line " + std::to_string(e.line()) + ": " + one_line(e.what());
}

}  // namespace

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  try {
    ChatTemplate t;
    t.impl_->tree = jinja::parse(source);
    t.impl_->source = std::move(source);
    return t;
  } catch (const jinja::JinjaError& e) {
    return fail(ErrorCode::invalid_argument, describe(e));
  } catch (const std::exception& e) {
    return fail(ErrorCode::out_of_memory, std::string("chat template: ") + e.what());
  }
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context) const {
  try {
    return jinja::render(*impl_->tree, context, jinja::Options{});
  } catch (const jinja::JinjaError& e) {
    return fail(ErrorCode::invalid_argument, describe(e));
  } catch (const std::exception& e) {
    return fail(ErrorCode::out_of_memory, std::string("chat template: ") + e.what());
  }
}

}  // namespace kvarto
