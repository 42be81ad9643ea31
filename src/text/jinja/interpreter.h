// Walks the tree of a template and writes the text. Any thread; the tree is only read.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/jinja/ast.h"

namespace kvarto::jinja {

// `context` is an object; its entries are the template's variables. Throws JinjaError.
std::string render(const Tree& tree, const nlohmann::ordered_json& context, const Options& options);

}  // namespace kvarto::jinja
