#include "format/gguf_split.h"

#include <algorithm>
#include <cstdio>

namespace kvarto {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr size_t kDigits = 5;
constexpr std::string_view kCountKey = "split.count";
constexpr std::string_view kNumberKey = "split.no";
constexpr std::string_view kTensorsKey = "split.tensors.count";

std::optional<uint32_t> read_digits(std::string_view text) {
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  uint32_t number = 0;
  for (const char c : text) number = number * 10 + static_cast<uint32_t>(c - '0');
  return number;
}

// A key that counts something; nothing when it is missing.
Result<std::optional<uint64_t>> read_count(const GgufOpenPart& open, std::string_view key) {
  const GgufValue* value = find_value(open.part, key);
  if (value == nullptr) return std::nullopt;
  const std::optional<uint64_t> number = value->is_array ? std::nullopt : exact_uint(GgufElements(*value).next());
  if (!number) {
    return fail(ErrorCode::corrupt, open.file.path() + ": key \"" + std::string(key) + "\" is " +
                                        describe_type(*value) + " " + describe_value(*value) + ", wanted a count");
  }
  return number;
}

Result<GgufOpenPart> open_file(const std::string& path) {
  GgufOpenPart open;
  ASSIGN_OR_RETURN(open.file, MappedFile::open(path));
  ASSIGN_OR_RETURN(open.part, parse_gguf_part(open.file.bytes(), path));
  return open;
}

std::string part_of(uint64_t number, uint64_t count) {
  return "part " + std::to_string(number) + " of " + std::to_string(count);
}

// What a part says of itself must agree with its file's name.
Status check_part(const GgufOpenPart& open, const GgufPartName& name) {
  ASSIGN_OR_RETURN(const std::optional<uint64_t> count, read_count(open, kCountKey));
  ASSIGN_OR_RETURN(const std::optional<uint64_t> number, read_count(open, kNumberKey));
  if (!count || !number) {
    return fail(ErrorCode::corrupt, open.file.path() + ": has no keys \"split.count\" and \"split.no\", so it is not " +
                                        part_of(name.number, name.count) + ": fetch it again");
  }
  if (*count != name.count || *number != name.number - 1) {
    return fail(ErrorCode::corrupt, open.file.path() + ": keys split.no " + std::to_string(*number) +
                                        " and split.count " + std::to_string(*count) + " do not fit its name (" +
                                        part_of(name.number, name.count) + "): give the parts their own names back");
  }
  return {};
}

// Each part may say how many tensors the whole model has.
Status check_tensor_count(const std::vector<GgufOpenPart>& parts) {
  uint64_t total = 0;
  for (const GgufOpenPart& open : parts) total += open.part.tensors.size();
  for (const GgufOpenPart& open : parts) {
    ASSIGN_OR_RETURN(const std::optional<uint64_t> said, read_count(open, kTensorsKey));
    if (said && *said != total) {
      return fail(ErrorCode::corrupt, open.file.path() + ": key \"split.tensors.count\" is " + std::to_string(*said) +
                                          ", but the parts hold " + std::to_string(total) +
                                          " tensors: fetch all parts of the same model");
    }
  }
  return {};
}

}  // namespace

std::optional<GgufPartName> read_part_name(std::string_view path) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kSuffix.size();
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || !tail.ends_with(kSuffix)) return std::nullopt;
  const std::optional<uint32_t> number = read_digits(tail.substr(1, kDigits));
  const std::optional<uint32_t> count = read_digits(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return GgufPartName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

std::string part_path(const GgufPartName& name) {
  char tail[32];
  std::snprintf(tail, sizeof tail, "-%05u-of-%05u", name.number, name.count);
  return name.stem + tail + std::string(kSuffix);
}

Result<std::vector<GgufOpenPart>> open_gguf_parts(const std::string& path) {
  std::vector<GgufOpenPart> parts;
  ASSIGN_OR_RETURN(GgufOpenPart named, open_file(path));
  ASSIGN_OR_RETURN(const std::optional<uint64_t> count, read_count(named, kCountKey));
  if (!count || *count <= 1) {
    parts.push_back(std::move(named));
    return parts;
  }
  const std::optional<GgufPartName> name = read_part_name(path);
  if (!name) {
    ASSIGN_OR_RETURN(const std::optional<uint64_t> number, read_count(named, kNumberKey));
    const GgufPartName wanted{"NAME", static_cast<uint32_t>(number.value_or(0) + 1), static_cast<uint32_t>(*count)};
    return fail(ErrorCode::invalid_argument, path + ": this is " + part_of(wanted.number, wanted.count) +
                                                 " of a split model: name it " + part_path(wanted) +
                                                 " and put the other parts beside it");
  }
  RETURN_IF_ERROR(check_part(named, *name));
  for (uint32_t number = 1; number <= name->count; ++number) {
    if (number == name->number) {
      parts.push_back(std::move(named));
      continue;
    }
    const GgufPartName sibling{name->stem, number, name->count};
    Result<GgufOpenPart> open = open_file(part_path(sibling));
    if (!open && open.error().code == ErrorCode::not_found) {
      return fail(ErrorCode::not_found, part_path(sibling) + ": missing " + part_of(number, name->count) +
                                            " of the split model that " + path +
                                            " belongs to: put it beside the others");
    }
    if (!open) return tl::unexpected<Error>(std::move(open.error()));
    RETURN_IF_ERROR(check_part(*open, sibling));
    parts.push_back(std::move(*open));
  }
  RETURN_IF_ERROR(check_tensor_count(parts));
  return parts;
}

}  // namespace kvarto
