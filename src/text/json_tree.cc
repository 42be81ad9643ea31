#include "text/json_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "format/printable.h"

namespace kvarto {

struct JsonTree::Frame {
  Json value;
  std::string key;  // of an object: the current one
};

JsonTree::JsonTree() : root_(std::make_unique<Json>()) {}
JsonTree::~JsonTree() = default;

void JsonTree::put(Json value) {
  if (frames_.empty()) {
    *root_ = std::move(value);
    return;
  }
  Frame& frame = frames_.back();
  if (frame.value.is_array()) {
    frame.value.push_back(std::move(value));
  } else {
    // Not operator[], which searches all keys before: a key that comes twice is found at the end.
    frame.value.get_ptr<Json::object_t*>()->push_back({std::move(frame.key), std::move(value)});
  }
}

void JsonTree::open_object() { frames_.push_back({Json::object(), {}}); }
void JsonTree::open_array() { frames_.push_back({Json::array(), {}}); }

void JsonTree::close() {
  Json value = std::move(frames_.back().value);
  frames_.pop_back();
  put(std::move(value));
}

void JsonTree::key(std::string name) { frames_.back().key = std::move(name); }
JsonTree::Json JsonTree::take() { return std::move(*root_); }
size_t JsonTree::depth() const { return frames_.size(); }
const std::string& JsonTree::key_at(size_t level) const { return frames_[level].key; }
size_t JsonTree::size() const { return frames_.back().value.size(); }

// n log n in the keys.
const std::string* JsonTree::repeated_key() const {
  const auto& pairs = *frames_.back().value.get_ptr<const Json::object_t*>();
  if (pairs.size() < 2) return nullptr;
  std::vector<const std::string*> keys;
  keys.reserve(pairs.size());
  for (const auto& pair : pairs) keys.push_back(&pair.first);
  std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto twin = std::adjacent_find(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a == *b; });
  return twin == keys.end() ? nullptr : *twin;
}

std::string JsonTree::path(std::string prefix) const {
  for (const Frame& frame : frames_) {
    if (frame.value.is_array()) {
      prefix += '[' + std::to_string(frame.value.size()) + ']';
    } else {
      prefix += (prefix.empty() ? "" : ".") + printable(frame.key);
    }
  }
  return prefix;
}

}  // namespace kvarto
