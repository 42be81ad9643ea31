#include "cli/model_name.h"

#include <algorithm>
#include <map>

#include "base/ascii.h"
#include "format/gguf_split.h"
#include "format/printable.h"

namespace kvarto {
namespace {

constexpr size_t kMaxNamesListed = 12;
constexpr size_t kMaxNameBytes = 96;

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

bool fit_for_name(std::string_view part) {
  if (part.empty() || part.size() > kMaxNameBytes || part[0] == '-' || part[0] == '.') return false;
  if (part.find("..") != std::string_view::npos || part.find("--") != std::string_view::npos) return false;
  return std::all_of(part.begin(), part.end(), [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

bool is_model_file(std::string_view path) {
  const std::string file = ascii_lower(path.substr(path.rfind('/') + 1));
  return file.ends_with(".gguf") && !file.starts_with("mmproj");
}

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

// Files that belong together, under the name they are shown by.
using Models = std::map<std::string, std::vector<std::string>>;

Models group_parts(std::span<const std::string> paths) {
  Models models;
  for (const std::string& path : paths) {
    if (!is_model_file(path)) continue;
    const std::optional<GgufPartName> part = read_part_name(path);
    models[part ? part_path({part->stem, 1, part->count}) : path].push_back(path);
  }
  for (auto& [name, files] : models) std::sort(files.begin(), files.end());
  return models;
}

std::string list_names(const Models& models) {
  std::string out;
  size_t listed = 0;
  for (const auto& [name, files] : models) {
    if (listed == kMaxNamesListed) return out + " and " + std::to_string(models.size() - listed) + " more";
    out += (listed++ == 0 ? "" : ", ") + printable(name, 120);
  }
  return out;
}

Status check_parts(const std::vector<std::string>& files) {
  const std::optional<GgufPartName> first = read_part_name(files.front());
  if (!first || files.size() == first->count) return {};
  return fail(ErrorCode::not_found, printable(files.front(), 120) + ": " + std::to_string(files.size()) + " of its " +
                                        std::to_string(first->count) + " parts are there");
}

}  // namespace

Result<ModelName> parse_model_name(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const size_t slash = std::min(text.find('/'), colon);
  const bool has_quant = colon < text.size();
  ModelName name;
  name.repo = text.substr(0, colon);
  name.quant = has_quant ? text.substr(colon + 1) : std::string_view();
  const bool fit = slash < colon && fit_for_name(text.substr(0, slash)) &&
                   fit_for_name(text.substr(slash + 1, colon - slash - 1)) && (!has_quant || fit_for_name(name.quant));
  if (!fit)
    return fail(ErrorCode::invalid_argument,
                kvarto::quoted(text) + " is no model name; wanted org/name or org/name:quant");
  return name;
}

Result<std::vector<std::string>> choose_gguf(std::span<const std::string> paths, std::string_view quant) {
  const Models all = group_parts(paths);
  if (all.empty()) return fail(ErrorCode::not_found, "no GGUF file; kvarto reads GGUF models only");
  Models matching, by_word;
  for (const auto& [name, files] : all) {
    if (ascii_lower(name).find(ascii_lower(quant)) == std::string::npos) continue;
    matching.emplace(name, files);
    if (has_word(ascii_lower(name), ascii_lower(quant))) by_word.emplace(name, files);
  }
  if (matching.empty()) {
    return fail(ErrorCode::not_found,
                "no GGUF file matches " + kvarto::quoted(quant) + "; there are " + list_names(all));
  }
  const Models& left = matching.size() > 1 && by_word.size() == 1 ? by_word : matching;
  if (left.size() > 1) {
    return fail(ErrorCode::invalid_argument, std::to_string(left.size()) +
                                                 " models match; choose one with org/name:quant, for "
                                                 "example its part of the file name: " +
                                                 list_names(left));
  }
  RETURN_IF_ERROR(check_parts(left.begin()->second));
  return left.begin()->second;
}

}  // namespace kvarto
