// Template text to tree: the grammar of Jinja2 for what chat templates use. Pure, any thread.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja/ast.h"

namespace kvarto::jinja {

// Throws JinjaError with the line and what was expected.
std::unique_ptr<const Tree> parse(std::string_view source);

}  // namespace kvarto::jinja
