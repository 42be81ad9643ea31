// --config: a YAML file whose keys are flags. The only file that knows yaml-cpp.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "cli/serve_flags.h"
#include "format/printable.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// A plain scalar is what YAML takes it for, a quoted one a string.
Json scalar(const YAML::Node& node) {
  const std::string text = node.Scalar();
  if (node.Tag() == "!") return text;
  if (bool on = false; YAML::convert<bool>::decode(node, on)) return on;
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() ? value : Json(text);
}

// Readers of YAML do not agree which one counts. Caught where the file is read.
[[noreturn]] void twice(const YAML::Node& node, const std::string& key) {
  throw YAML::Exception(node.Mark(), "key " + kvarto::quoted(key) + " stands twice");
}

Json to_json(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map: {
      Json object = Json::object();
      for (const auto& entry : node) {
        const auto key = entry.first.as<std::string>();
        if (object.contains(key)) twice(entry.first, key);
        object[key] = to_json(entry.second);
      }
      return object;
    }
    case YAML::NodeType::Sequence: {
      Json array = Json::array();
      for (const auto& entry : node) array.push_back(to_json(entry));
      return array;
    }
    case YAML::NodeType::Scalar:
      return scalar(node);
    default:
      return nullptr;
  }
}

Status add_words(std::vector<std::string>& words, const std::string& key, const YAML::Node& node) {
  const std::string flag = "--" + key;
  // Unknown ones are told of by whoever reads the words.
  const FlagRow* const row = flag_row(flag.substr(0, flag.find('.')));
  const bool is_list = row != nullptr && row->kind == FlagKind::list;
  if (row != nullptr && row->kind != FlagKind::json && (node.IsMap() || (node.IsSequence() && !is_list))) {
    return fail(ErrorCode::invalid_argument, kvarto::quoted(key) + " takes a plain value, and no map or list");
  }
  // A list that is JSON on a command line.
  if (!node.IsSequence() || !is_list || row->value == "JSON") {
    const Json value = to_json(node);
    if (value.is_boolean()) {
      words.push_back(value.get<bool>() ? flag : "--no-" + key);
    } else {
      words.push_back(flag + "=" + (node.IsNull() ? "None" : node.IsScalar() ? node.Scalar() : value.dump()));
    }
    return {};
  }
  words.push_back(flag);
  for (const auto& entry : node) {
    if (!entry.IsScalar()) {
      return fail(ErrorCode::invalid_argument, "the list of " + kvarto::quoted(key) + " may hold plain values only");
    }
    words.push_back(entry.Scalar());
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> read_config_file(const std::string& path) {
  const auto wrong = [&](const std::string& why) {
    return fail(ErrorCode::invalid_argument, "config file " + kvarto::quoted(path) + ": " + why);
  };
  ASSIGN_OR_RETURN(const std::string text, read_file(path, 1 << 20));
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return wrong("not a YAML map; write a flag a line, such as port: 8001");
    std::vector<std::string> words;
    std::set<std::string> seen;
    for (const auto& entry : root) {
      std::string key = entry.first.as<std::string>();
      if (key == "config" || key == "help" || key == "check-flags")
        return wrong(kvarto::quoted(key) + " belongs on the command line");
      std::replace(key.begin(), key.end(), '_', '-');
      if (!seen.insert(key).second) twice(entry.first, key);
      const Status added = add_words(words, key, entry.second);
      if (!added) return wrong(added.error().message);
    }
    return words;
  } catch (const YAML::Exception& error) {
    return wrong("line " + std::to_string(error.mark.line + 1) + ": " + printable(error.msg));
  }
}

}  // namespace kvarto
