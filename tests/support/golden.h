// Reads the model goldens (tests/golden/*.json, tests/tiny/*.json): what an independent implementation computed in f32.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvarto/types.h"

namespace kvarto::testing {

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

inline std::string source_path(const std::string& relative) { return std::string(KVARTO_SOURCE_DIR) + "/" + relative; }

struct RealModel {
  const char* file;    // in models/
  const char* golden;  // in tests/golden/
};
inline constexpr RealModel kRealModels[] = {
    {"models/smollm2-135m-q4_1.gguf", "tests/golden/smollm2.json"},
    {"models/tm05.gguf", "tests/golden/qwen2_0.5b.json"},
    {"models/gemma3-270m-q4km.gguf", "tests/golden/gemma3_270m.json"},
};

}  // namespace kvarto::testing
