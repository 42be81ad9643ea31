// Models split over several files: "NAME-00001-of-00003.gguf" and so on. Opening any part opens all. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "format/gguf_part.h"
#include "kvarto/result.h"

namespace kvarto {

struct GgufPartName {
  std::string stem;     // what stands before "-00001-of-00003.gguf", folder included
  uint32_t number = 0;  // from 1
  uint32_t count = 0;
};

std::optional<GgufPartName> read_part_name(std::string_view path);  // nothing: not named as a part
std::string part_path(const GgufPartName& name);

struct GgufOpenPart {
  MappedFile file;
  GgufPart part;
};

// The file at `path`, or, when it says that it is part of a split model, all parts in order.
Result<std::vector<GgufOpenPart>> open_gguf_parts(const std::string& path);

}  // namespace kvarto
