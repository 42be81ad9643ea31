// The text side of a model file, without its weights: tokenizer and chat template. Immutable; any thread.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "format/gguf.h"
#include "text/tokenizer.h"

namespace kvarto {

struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string chat_template;  // source; empty: none

  static Result<ModelText> read(const GgufFile& file);
  // `context` has messages (and tools, ...); the tokenizer's own variables are added.
  Result<std::string> render(nlohmann::ordered_json context) const;
};

}  // namespace kvarto
