// Chat templates: a small Jinja interpreter for what real templates use, rendering messages to prompt text. A template
// that cannot be parsed or that raises gives an Error with its line and its own words; no other template is ever used
// instead. Immutable after parse; render() may be called from any thread.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

class ChatTemplate {
 public:
  // Errors: syntax, with "line N". `source` is the template text.
  static Result<ChatTemplate> parse(std::string source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `context` is an ordered JSON object of the template's variables (messages, tools, add_generation_prompt, bos_token,
  // ...). Key order is kept byte for byte. Errors: what raise_exception said, undefined operations, limits on steps and
  // output.
  Result<std::string> render(const nlohmann::ordered_json& context) const;
  const std::string& source() const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
