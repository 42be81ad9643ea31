#include "eval/record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

tl::unexpected<Error> damaged(std::string what) { return fail(ErrorCode::corrupt, std::move(what)); }

// --- numbers: a float is written as the double that it is, of which nlohmann writes digits that read back as the same
// bits; JSON has no word for what is not finite

Json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number_from(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto word = json.get<std::string>();
  return word == "inf" ? kInf : word == "-inf" ? -kInf : std::numeric_limits<double>::quiet_NaN();
}

Json optional_json(const std::optional<double>& value) { return value ? number_json(*value) : Json(); }

std::optional<double> optional_from(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<double>(number_from(json));
}

template <typename T>
Json numbers_json(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T value : values) array.push_back(number_json(static_cast<double>(value)));
  return array;
}

template <typename T>
std::vector<T> numbers_from(const Json& array) {
  std::vector<T> values;
  values.reserve(array.size());
  for (const Json& value : array) values.push_back(static_cast<T>(number_from(value)));
  return values;
}

// --- lines

Json facts_json(const RunFacts& facts) {
  Json texts = Json::array();
  for (const RunFacts::Text& text : facts.texts) {
    texts.push_back({{"name", text.name}, {"sha256", text.sha256}, {"tokens", text.tokens}});
  }
  return {{"model", facts.model},
          {"fingerprint", facts.fingerprint},
          {"architecture", facts.architecture},
          {"numerics", facts.numerics},
          {"simd_target", facts.simd_target},
          {"weight_types", facts.weight_types},
          {"threads", facts.threads},
          {"block_size", facts.block_size},
          {"seed", facts.seed},
          {"context_tokens", facts.context_tokens},
          {"samples", facts.samples},
          {"settings", facts.settings},
          {"noise_floor", facts.noise_floor ? Json(*facts.noise_floor) : Json(nullptr)},
          {"families", facts.families},
          {"texts", std::move(texts)},
          {"own_tasks_sha256", facts.own_tasks_sha256},
          {"program", facts.program}};
}

Json text_json(size_t setting, const TextRecord& record) {
  std::string same_top;
  for (const uint8_t same : record.same_top) same_top += same != 0 ? '1' : '0';
  return {{"setting", setting},
          {"text", record.text},
          {"nll", numbers_json(record.nll)},
          {"divergence", numbers_json(record.divergence)},
          {"same_top", same_top}};
}

TextRecord text_from(const Json& json) {
  TextRecord record{.text = json.at("text").get<uint32_t>(),
                    .nll = numbers_from<float>(json.at("nll")),
                    .divergence = numbers_from<double>(json.at("divergence")),
                    .same_top = {}};
  for (const char same : json.at("same_top").get<std::string>()) record.same_top.push_back(same == '1' ? 1 : 0);
  return record;
}

Json task_json(size_t setting, const TaskRecord& record) {
  return {{"setting", setting},
          {"task", record.id},
          {"family", record.family},
          {"skill", skill_name(record.skill)},
          {"length_tokens", record.length_tokens},
          {"depth", optional_json(record.depth)},
          {"nll", optional_json(record.nll)},
          {"answer_tokens", record.answer_tokens},
          {"floor_nll", optional_json(record.floor_nll)},
          {"right", record.right},
          {"wrote", record.text}};
}

Result<TaskRecord> task_from(const Json& json) {
  const auto named = json.at("skill").get<std::string>();
  const auto* const skill = std::ranges::find(kSkills, std::string_view(named), skill_name);
  if (skill == std::end(kSkills)) return damaged("there is no skill " + kvarto::quoted(named));
  return TaskRecord{.id = json.at("task").get<std::string>(),
                    .family = json.at("family").get<std::string>(),
                    .skill = *skill,
                    .length_tokens = json.at("length_tokens").get<uint32_t>(),
                    .depth = optional_from(json.at("depth")),
                    .nll = optional_from(json.at("nll")),
                    .answer_tokens = json.at("answer_tokens").get<uint32_t>(),
                    .floor_nll = optional_from(json.at("floor_nll")),
                    .right = json.at("right").get<bool>(),
                    .text = json.at("wrote").get<std::string>()};
}

// --- another run?

std::string shown_value(const Json& json) { return printable(dump(json), 60); }

// Where two values part, in words; empty: they are equal.
std::string difference(const std::string& name, const Json& there, const Json& here) {
  if (there == here) return "";
  if (there.is_object() && here.is_object()) {
    for (const auto& item : here.items()) {
      const std::string inner = name.empty() ? item.key() : name + "." + item.key();
      const Json other = there.contains(item.key()) ? there.at(item.key()) : Json();
      if (std::string found = difference(inner, other, item.value()); !found.empty()) return found;
    }
  }
  if (there.is_array() && here.is_array() && there.size() == here.size()) {
    for (size_t i = 0; i < here.size(); ++i) {
      std::string found = difference(name + "[" + std::to_string(i) + "]", there[i], here[i]);
      if (!found.empty()) return found;
    }
  }
  return (name.empty() ? "the run" : name) + " is " + shown_value(there) + " there and " + shown_value(here) + " here";
}

// Both are lines of the file: what became of bytes that are no UTF-8 is the same in both.
Status same_run(std::string_view there, std::string_view here) {
  const Result<Json> before = parse_json(there), now = parse_json(here);
  if (!before || !before->is_object() || !before->contains("settings")) {
    return damaged("this is no file of records; give another folder");
  }
  const std::string found = now ? difference("", *before, *now) : "the run cannot be written";
  if (found.empty()) return {};
  return fail(ErrorCode::invalid_argument,
              "this is another run: " + found + "; give another folder, or --fresh to begin anew in this one");
}

}  // namespace

// Appends whole lines: what could be written only in part is taken back. Locked while it lives.
class RecordFile::Lines {
 public:
  static Result<std::unique_ptr<Lines>> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0) return system_error(path, "cannot open");
    auto lines = std::make_unique<Lines>(path, fd);
    struct stat status {};
    if (::fstat(fd, &status) != 0) return system_error(path, "cannot stat");
    if (!S_ISREG(status.st_mode)) return fail(ErrorCode::invalid_argument, path + ": not a regular file");
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      return fail(ErrorCode::io, path + ": another run writes it at the moment; wait for it, or give another folder");
    }
    return lines;
  }
  Lines(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() { ::close(fd_); }

  Status cut(size_t bytes) {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return system_error(path_, "cannot shorten");
    bytes_ = bytes;
    return {};
  }

  Status append(std::string line) {
    line += '\n';
    for (size_t done = 0; done < line.size();) {
      const ssize_t count = ::write(fd_, line.data() + done, line.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        const auto error = system_error(path_, "cannot write");
        // The rest of a line would run into the next one; where even this fails the next run sees damage and says so.
        [[maybe_unused]] const int shortened = ::ftruncate(fd_, static_cast<off_t>(bytes_));
        return error;
      }
      done += static_cast<size_t>(count);
    }
    bytes_ += line.size();
    if (::fdatasync(fd_) != 0) return system_error(path_, "cannot sync");
    return {};
  }

 private:
  static tl::unexpected<Error> system_error(const std::string& path, const char* what) {
    return fail(ErrorCode::io, path + ": " + what + ": " + std::strerror(errno));
  }

  std::string path_;
  int fd_;
  size_t bytes_ = 0;
};

RecordFile::RecordFile(const RunFacts& facts) : prompt_tokens_(facts.settings.size()), texts_(facts.texts.size()) {
  for (const std::string& setting : facts.settings) settings_.push_back({.setting = setting, .texts = {}, .tasks = {}});
}
RecordFile::RecordFile(RecordFile&&) noexcept = default;
RecordFile& RecordFile::operator=(RecordFile&&) noexcept = default;
RecordFile::~RecordFile() = default;

Result<RecordFile> RecordFile::open(const std::string& path, const RunFacts& facts) {
  RecordFile file(facts);
  ASSIGN_OR_RETURN(file.lines_, Lines::open(path));
  RETURN_IF_ERROR(file.read(path, dump(facts_json(facts))));
  return file;
}

Status RecordFile::read(const std::string& path, const std::string& facts_line) {
  ASSIGN_OR_RETURN(const std::string content, read_file(path));
  const size_t whole = content.rfind('\n') + 1;  // 0 without any; what stands behind is torn
  if (whole == 0) {
    if (!facts_line.starts_with(content)) {
      return damaged(path + ": this is no file of records of this run; give another folder, or --fresh to begin anew");
    }
    RETURN_IF_ERROR(lines_->cut(0));
    return lines_->append(facts_line);
  }
  std::string_view rest = std::string_view(content).substr(0, whole);
  for (size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (number == 1) {
      if (const Status same = same_run(line, facts_line); !same) {
        return fail(same.error().code, path + ": " + same.error().message);
      }
    } else if (const Status kept = keep(line); !kept) {
      return fail(kept.error().code, path + ": line " + std::to_string(number) + ": " + kept.error().message +
                                         "; remove the line, or begin anew with --fresh");
    }
    rest.remove_prefix(line.size() + 1);
  }
  return lines_->cut(whole);
}

// A line of any kind: a text's key "text", a task's "task", else what it cost.
Status RecordFile::keep(std::string_view line) {
  const Result<Json> parsed = parse_json(line);
  if (!parsed) return damaged("no record: " + parsed.error().message);
  const Json& json = *parsed;
  try {
    const auto index = json.at("setting").get<size_t>();
    if (index >= settings_.size()) return damaged("there is no setting " + std::to_string(index));
    SettingRecords& setting = settings_[index];
    if (json.contains("text")) {
      TextRecord record = text_from(json);
      const auto fits = [&](size_t size) { return size == record.nll.size() || (size == 0 && index == 0); };
      if (record.text >= texts_ || !fits(record.divergence.size()) || !fits(record.same_top.size())) {
        return damaged("the record of a text is not whole");
      }
      if (has_text(index, record.text)) return damaged("text " + std::to_string(record.text) + " comes twice");
      setting.texts.push_back(std::move(record));
    } else if (json.contains("task")) {
      ASSIGN_OR_RETURN(TaskRecord record, task_from(json));
      if (task(index, record.id) != nullptr) return damaged("task " + kvarto::quoted(record.id) + " comes twice");
      setting.tasks.push_back(std::move(record));
    } else {
      const auto bytes = json.at("kv_bytes_per_token").get<uint64_t>();
      prompt_tokens_[index] += json.at("prompt_tokens").get<uint64_t>();
      setting.seconds += number_from(json.at("seconds"));
      if (bytes > 0) setting.kv_bytes_per_token = bytes;
      setting.prompt_tokens_per_s =
          setting.seconds > 0 ? static_cast<double>(prompt_tokens_[index]) / setting.seconds : 0;
    }
  } catch (const Json::exception&) {
    return damaged("no record: a field is missing or of another kind");
  }
  return {};
}

Status RecordFile::add_line(const std::string& line) {
  RETURN_IF_ERROR(keep(line));
  return lines_->append(line);
}

bool RecordFile::has_text(size_t setting, uint32_t text) const {
  return std::ranges::find(settings_[setting].texts, text, &TextRecord::text) != settings_[setting].texts.end();
}

const TaskRecord* RecordFile::task(size_t setting, std::string_view id) const {
  const std::vector<TaskRecord>& tasks = settings_[setting].tasks;
  const auto found = std::ranges::find(tasks, id, &TaskRecord::id);
  return found == tasks.end() ? nullptr : &*found;
}

Status RecordFile::add(size_t setting, const TextRecord& record) { return add_line(dump(text_json(setting, record))); }
Status RecordFile::add(size_t setting, const TaskRecord& record) { return add_line(dump(task_json(setting, record))); }

Status RecordFile::add_cost(size_t setting, uint64_t kv_bytes_per_token, uint64_t prompt_tokens, double seconds) {
  return add_line(dump(Json{{"setting", setting},
                            {"kv_bytes_per_token", kv_bytes_per_token},
                            {"prompt_tokens", prompt_tokens},
                            {"seconds", seconds}}));
}

}  // namespace kvarto
