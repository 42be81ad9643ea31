// JsonTree: the value that grows while a parser tells what it reads, and the objects and arrays that are open. Both
// readers of what others wrote build with it: parse_json, and the server's of request bodies, which has rules of its
// own. Belongs to one parse.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kvarto {

// The id of nlohmann's exception for a number that no double holds.
inline constexpr int kJsonNumberOutOfRange = 406;

class JsonTree {
 public:
  using Json = nlohmann::ordered_json;

  JsonTree();
  ~JsonTree();

  // Where the next value goes: the end of the innermost array, under the latest key of the innermost object, or, when
  // nothing is open, it is the whole.
  void put(Json value);
  void open_object();
  void open_array();
  void close();
  void key(std::string name);
  Json take();  // the whole

  size_t depth() const;                           // what is open
  const std::string& key_at(size_t level) const;  // the latest of the object `level` from the outside; empty: none yet
  size_t size() const;                            // of the innermost
  // A key that the innermost object has twice; null: none.
  const std::string* repeated_key() const;
  // "messages[2].content": where the next value goes, below `prefix`.
  std::string path(std::string prefix) const;

 private:
  struct Frame;
  std::vector<Frame> frames_;
  std::unique_ptr<Json> root_;
};

}  // namespace kvarto
