// The texts that perplexity and divergence are measured on: the user's files, or the licences that every Debian has.
// Pure functions but for reading files, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/record.h"
#include "eval/run.h"
#include "kvarto/result.h"
#include "text/tokenizer.h"

namespace kvarto {

inline constexpr char kLicenceFolder[] = "/usr/share/common-licenses";
inline constexpr uint32_t kShortestText = 64;  // tokens

struct TextFile {
  std::string name;  // without its folder
  std::string content;
};

// `paths`, or where there are none the licences of a folder. Errors name the file: missing, too long, not UTF-8.
Result<std::vector<TextFile>> read_texts(std::span<const std::string> paths,
                                         const std::string& licence_folder = kLicenceFolder);

struct TextPieces {
  std::vector<EvalText> texts;
  std::vector<RunFacts::Text> facts;  // [texts]
};

// Pieces of `context_tokens` ids, a BOS included where the model wants one: the first of each file, then the second of
// each, and so on, up to `most`. What is left of a file behind its last whole piece is not used; the first piece is the
// whole file where that is shorter. A file of fewer than kShortestText tokens is an error.
Result<TextPieces> cut_texts(std::span<const TextFile> files, const Tokenizer& tokenizer, uint32_t context_tokens,
                             size_t most);

}  // namespace kvarto
