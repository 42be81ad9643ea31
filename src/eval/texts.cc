#include "eval/texts.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "text/unicode.h"

namespace kvarto {
namespace {

constexpr size_t kLongestFile = size_t{64} << 20;  // bytes; a tokenizer takes seconds for so much
// The longest first: one alone is enough for a piece of usual length.
constexpr const char* kLicences[] = {"GPL-3", "GFDL-1.3", "MPL-2.0", "Apache-2.0", "Artistic"};

Result<TextFile> read_text(const std::string& path) {
  TextFile file{.name = std::filesystem::path(path).filename().string(), .content = {}};
  ASSIGN_OR_RETURN(file.content, read_file(path, kLongestFile));
  if (const auto bad = find_invalid_utf8(file.content)) {
    return fail(ErrorCode::invalid_argument,
                path + ": not valid UTF-8 at byte " + std::to_string(*bad) + "; convert it to UTF-8, or leave it out");
  }
  return file;
}

RunFacts::Text text_facts(const EvalText& text, std::span<const TokenId> ids, const Tokenizer& tokenizer) {
  Sha256 hash;
  hash.update(tokenizer.decode(ids));
  return {.name = text.name, .sha256 = to_hex(hash.finish()), .tokens = text.ids.size()};
}

}  // namespace

Result<std::vector<TextFile>> read_texts(std::span<const std::string> paths, const std::string& licence_folder) {
  std::vector<TextFile> files;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(TextFile file, read_text(path));
    files.push_back(std::move(file));
  }
  if (!paths.empty()) return files;
  for (const char* const name : kLicences) {
    const std::string path = licence_folder + "/" + name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    ASSIGN_OR_RETURN(TextFile file, read_text(path));
    files.push_back(std::move(file));
  }
  if (!files.empty()) return files;
  return fail(ErrorCode::not_found, "there is no text to measure on: " + licence_folder +
                                        ", where Debian has the usual licences, has none of them; give files with "
                                        "--text FILE, or leave texts out with --only");
}

Result<TextPieces> cut_texts(std::span<const TextFile> files, const Tokenizer& tokenizer, uint32_t context_tokens,
                             size_t most) {
  std::vector<std::vector<TokenId>> contents;
  for (const TextFile& file : files) {
    ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                     tokenizer.encode(file.content, {.parse_special = false, .add_bos = false}));
    if (ids.size() < kShortestText) {
      return fail(ErrorCode::invalid_argument, file.name + " has " + std::to_string(ids.size()) +
                                                   " tokens, and a text needs " + std::to_string(kShortestText) +
                                                   " or more; give a longer one");
    }
    contents.push_back(std::move(ids));
  }
  const size_t bos = tokenizer.wants_bos() ? 1 : 0;
  const size_t length = context_tokens > bos ? context_tokens - bos : 1;
  TextPieces pieces;
  bool found = true;
  for (size_t round = 0; found && pieces.texts.size() < most; ++round) {
    found = false;
    for (size_t i = 0; i < files.size() && pieces.texts.size() < most; ++i) {
      const std::span<const TokenId> all = contents[i];
      if (round > 0 && all.size() < (round + 1) * length) continue;
      found = true;
      const std::span<const TokenId> part = all.subspan(round * length, std::min(length, all.size() - round * length));
      EvalText text{.name = files[i].name + " #" + std::to_string(round + 1), .ids = {}};
      if (bos == 1) text.ids.push_back(*tokenizer.vocabulary().bos);
      text.ids.insert(text.ids.end(), part.begin(), part.end());
      pieces.facts.push_back(text_facts(text, part, tokenizer));
      pieces.texts.push_back(std::move(text));
    }
  }
  return pieces;
}

}  // namespace kvarto
