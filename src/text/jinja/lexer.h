// Cuts template text into tokens: plain text between tags, and what stands inside {{ }} and {% %}. White space control
// (trim_blocks and lstrip_blocks on, `-` and `+` marks), comments and raw blocks are settled here. Pure, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvarto::jinja {

enum class TokenKind {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind;
  std::string text;  // of strings: with escapes resolved
  int line;
};

// How errors call it: "'end of statement block'", "'%}'".
std::string describe(const Token& token);

// Throws JinjaError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kvarto::jinja
