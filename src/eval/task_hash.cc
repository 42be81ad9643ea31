#include "eval/task_hash.h"

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace kvarto {
namespace {

// Each field with its length in front, so that no two lists of fields give the same bytes.
void add(Sha256& hash, std::string_view field) {
  hash.update(std::to_string(field.size()) + ":");
  hash.update(field);
}

void add(Sha256& hash, uint64_t number) {
  const std::string digits = std::to_string(number);
  add(hash, std::string_view(digits));
}

void add(Sha256& hash, const Task& task) {
  for (const std::string* const field :
       {&task.family, &task.id, &task.group, &task.prompt, &task.messages, &task.answer, &task.floor_prompt}) {
    add(hash, std::string_view(*field));
  }
  add(hash, static_cast<uint64_t>(task.skill));
  add(hash, static_cast<uint64_t>(task.judge));
  add(hash, uint64_t{task.max_tokens});
  add(hash, uint64_t{task.length_tokens});
  const std::string depth = task.depth ? std::to_string(std::bit_cast<uint64_t>(*task.depth)) : "";
  add(hash, std::string_view(depth));
  add(hash, uint64_t{task.stop.size()});
  for (const std::string& stop : task.stop) add(hash, std::string_view(stop));
}

}  // namespace

std::string tasks_sha256(std::span<const Task> tasks) {
  if (tasks.empty()) return "";
  Sha256 hash;
  for (const Task& task : tasks) add(hash, task);
  return to_hex(hash.finish());
}

}  // namespace kvarto
