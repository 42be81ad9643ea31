#include "eval/own_tasks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "format/printable.h"
#include "text/json_text.h"
#include "text/unicode.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxLine = size_t{1} << 20;
constexpr size_t kMostTasks = 100'000, kLongestId = 200, kMostStops = 16;
constexpr uint32_t kDefaultTokens = 128, kMostTokens = 4096;

tl::unexpected<Error> wrong(std::string message) { return fail(ErrorCode::invalid_argument, std::move(message)); }

Result<std::string> read_text(const std::string& key, const Json& value) {
  if (!value.is_string()) return wrong(kvarto::quoted(key) + " is not a text; write it in double quotes");
  std::string text = value.get<std::string>();
  if (text.empty()) return wrong(kvarto::quoted(key) + " is empty; leave it out or fill it");
  return text;
}

// It stands in tables and files.
Result<std::string> read_id(const Json& value) {
  ASSIGN_OR_RETURN(std::string id, read_text("id", value));
  const bool plain = std::ranges::none_of(id, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (!plain || id.size() > kLongestId) {
    return wrong("the id " + kvarto::quoted(id) + " has control characters, or more than " +
                 std::to_string(kLongestId) + " bytes");
  }
  return id;
}

Result<std::string> read_messages(const Json& value) {
  if (!value.is_array() || value.empty()) return wrong("\"messages\" is not an array with at least one message");
  for (const Json& message : value) {
    if (!message.is_object()) return wrong("\"messages\" has something that is no object with role and content");
    for (const char* key : {"role", "content"}) {
      if (!message.contains(key) || !message[key].is_string()) {
        return wrong("a message's " + kvarto::quoted(key) + " is missing or not a text");
      }
    }
    for (const auto& item : message.items()) {
      if (item.key() == "role" || item.key() == "content") continue;
      return wrong("a message has the key " + kvarto::quoted(item.key()) + "; it may have role and content");
    }
  }
  return dump(value);
}

Result<uint32_t> read_max_tokens(const Json& value) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() >= 1 && value.get<uint64_t>() <= kMostTokens;
  if (fits) return value.get<uint32_t>();
  return wrong("\"max_tokens\" is not a whole number from 1 to " + std::to_string(kMostTokens));
}

// Of white space alone it could be no part of what was asked for.
Result<std::string> read_answer(const Json& value) {
  ASSIGN_OR_RETURN(std::string answer, read_text("answer", value));
  if (answer.find_first_not_of(" \t\r\n\v\f") == std::string::npos) {
    return wrong("\"answer\" is white space only; leave it out or fill it");
  }
  return answer;
}

Result<std::vector<std::string>> read_stop(const Json& value) {
  if (!value.is_array() || value.size() > kMostStops) {
    return wrong("\"stop\" is not an array of at most " + std::to_string(kMostStops) + " texts");
  }
  std::vector<std::string> stop;
  for (const Json& text : value) {
    ASSIGN_OR_RETURN(stop.emplace_back(), read_text("stop", text));
  }
  return stop;
}

Status read_field(const std::string& key, const Json& value, Task& task) {
  if (key == "prompt") {
    ASSIGN_OR_RETURN(task.prompt, read_text(key, value));
  } else if (key == "messages") {
    ASSIGN_OR_RETURN(task.messages, read_messages(value));
  } else if (key == "answer") {
    ASSIGN_OR_RETURN(task.answer, read_answer(value));
    task.family = "own";
    task.judge = Judge::contains;
  } else if (key == "id") {
    ASSIGN_OR_RETURN(task.id, read_id(value));
  } else if (key == "max_tokens") {
    ASSIGN_OR_RETURN(task.max_tokens, read_max_tokens(value));
  } else if (key == "stop") {
    ASSIGN_OR_RETURN(task.stop, read_stop(value));
  } else {
    return wrong("there is no key " + kvarto::quoted(key) +
                 "; a task has prompt or messages, and may have answer, id, max_tokens and stop");
  }
  return {};
}

Result<Task> read_task(std::string_view line) {
  if (line.size() > kMaxLine) return wrong("longer than 1 MiB");
  if (const std::optional<size_t> bad = find_invalid_utf8(line)) {
    return fail(ErrorCode::corrupt, "no UTF-8 at byte " + std::to_string(*bad) + "; save the file as UTF-8");
  }
  const Result<Json> object = parse_json(line);
  if (!object) return tl::unexpected<Error>(object.error());
  if (!object->is_object()) return wrong("no JSON object; write {\"prompt\": \"...\", \"answer\": \"...\"}");
  Task task;
  task.family = "own-agreement";
  task.skill = Skill::own;
  task.judge = Judge::agreement;
  task.max_tokens = kDefaultTokens;
  for (const auto& item : object->items()) RETURN_IF_ERROR(read_field(item.key(), item.value(), task));
  if (task.prompt.empty() == task.messages.empty()) {
    return wrong(task.prompt.empty() ? "there is neither \"prompt\" nor \"messages\"; give one"
                                     : "\"prompt\" and \"messages\" exclude each other; give one");
  }
  return task;
}

}  // namespace

Result<std::vector<Task>> parse_own_tasks(std::string_view jsonl) {
  std::vector<Task> tasks;
  std::unordered_map<std::string, size_t> lines;  // of ids
  for (size_t number = 1; !jsonl.empty(); ++number) {
    const std::string_view line = jsonl.substr(0, jsonl.find('\n'));
    jsonl.remove_prefix(std::min(line.size() + 1, jsonl.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = "line " + std::to_string(number) + ": ";
    Result<Task> task = read_task(line);
    if (!task) return fail(task.error().code, where + task.error().message);
    if (tasks.size() == kMostTasks) return wrong(where + "more than " + std::to_string(kMostTasks) + " tasks");
    if (task->id.empty()) task->id = "own-" + std::to_string(number);
    if (const auto [twin, fresh] = lines.emplace(task->id, number); !fresh) {
      return wrong(where + "the id " + kvarto::quoted(task->id) + " is that of line " + std::to_string(twin->second) +
                   ", too; give each its own");
    }
    tasks.push_back(std::move(*task));
  }
  if (tasks.empty()) return wrong("there is no task; give one a line, such as {\"prompt\": \"...\"}");
  return tasks;
}

}  // namespace kvarto
