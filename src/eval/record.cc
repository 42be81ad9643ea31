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
#include "base/hash.h"
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

Result<double> number_from(const Json& json) {
  if (json.is_number()) return json.get<double>();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (json == "inf") return kInf;
  if (json == "-inf") return -kInf;
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  return damaged("a number is none");
}

Json optional_json(const std::optional<double>& value) { return value ? number_json(*value) : Json(); }

Result<std::optional<double>> optional_from(const Json& json) {
  if (json.is_null()) return std::optional<double>();
  ASSIGN_OR_RETURN(const double value, number_from(json));
  return std::optional<double>(value);
}

template <typename T>
Json numbers_json(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T value : values) array.push_back(number_json(static_cast<double>(value)));
  return array;
}

template <typename T>
Result<std::vector<T>> numbers_from(const Json& array) {
  if (!array.is_array()) return damaged("numbers are no array");
  std::vector<T> values;
  values.reserve(array.size());
  for (const Json& json : array) {
    ASSIGN_OR_RETURN(const double value, number_from(json));
    if (std::isfinite(value) && std::abs(value) > double{std::numeric_limits<T>::max()}) {
      return damaged("the number " + dump(json) + " is too large");
    }
    values.push_back(static_cast<T>(value));
  }
  return values;
}

// A whole number that T holds.
template <typename T>
Result<T> whole_from(const Json& json) {
  if (!json.is_number_unsigned() || !std::in_range<T>(json.get<uint64_t>())) {
    return damaged("a count is " + printable(dump(json), 40));
  }
  return static_cast<T>(json.get<uint64_t>());
}

Result<double> duration_from(const Json& json) {
  ASSIGN_OR_RETURN(const double value, number_from(json));
  if (!std::isfinite(value) || value < 0) return damaged("a time is " + printable(dump(json), 40));
  return value;
}

// --- lines

Json facts_json(const RunFacts& facts) {
  Json texts = Json::array();
  for (const RunFacts::Text& text : facts.texts) {
    texts.push_back({{"name", text.name}, {"sha256", text.sha256}, {"tokens", text.tokens}});
  }
  Json servers = Json::array();
  for (const RunFacts::Server& server : facts.servers) {
    servers.push_back({{"url", server.url}, {"model", server.model}, {"echoes", server.echoes}});
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
          {"servers", std::move(servers)},
          {"noise_floor", facts.noise_floor ? Json(*facts.noise_floor) : Json(nullptr)},
          {"families", facts.families},
          {"texts", std::move(texts)},
          {"tasks_sha256", facts.tasks_sha256},
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

Result<TextRecord> text_from(const Json& json) {
  TextRecord record;
  ASSIGN_OR_RETURN(record.text, whole_from<uint32_t>(json.at("text")));
  ASSIGN_OR_RETURN(record.nll, numbers_from<float>(json.at("nll")));
  ASSIGN_OR_RETURN(record.divergence, numbers_from<double>(json.at("divergence")));
  for (const char same : json.at("same_top").get<std::string>()) {
    if (same != '0' && same != '1') return damaged("\"same_top\" has more than 0 and 1");
    record.same_top.push_back(same == '1' ? 1 : 0);
  }
  return record;
}

Json rows_json(size_t setting, uint32_t text, const std::string& sha256) {
  return {{"setting", setting}, {"rows_of_text", text}, {"sha256", sha256}};
}

Json task_json(size_t setting, const TaskRecord& record) {
  return {{"setting", setting},
          {"task", record.id},
          {"family", record.family},
          {"group", record.group},
          {"skill", skill_name(record.skill)},
          {"length_tokens", record.length_tokens},
          {"depth", optional_json(record.depth)},
          {"nll", optional_json(record.nll)},
          {"answer_tokens", record.answer_tokens},
          {"floor_nll", optional_json(record.floor_nll)},
          {"agreement", record.agreement},
          {"right", record.right},
          {"wrote", record.text},
          {"failed", record.failed}};
}

Result<TaskRecord> task_from(const Json& json) {
  const auto named = json.at("skill").get<std::string>();
  const auto* const skill = std::ranges::find(kSkills, std::string_view(named), skill_name);
  if (skill == std::end(kSkills)) return damaged("there is no skill " + kvarto::quoted(named));
  TaskRecord record;
  record.id = json.at("task").get<std::string>();
  record.family = json.at("family").get<std::string>();
  record.group = json.at("group").get<std::string>();
  record.skill = *skill;
  ASSIGN_OR_RETURN(record.length_tokens, whole_from<uint32_t>(json.at("length_tokens")));
  ASSIGN_OR_RETURN(record.depth, optional_from(json.at("depth")));
  ASSIGN_OR_RETURN(record.nll, optional_from(json.at("nll")));
  ASSIGN_OR_RETURN(record.answer_tokens, whole_from<uint32_t>(json.at("answer_tokens")));
  ASSIGN_OR_RETURN(record.floor_nll, optional_from(json.at("floor_nll")));
  if (record.depth && !(*record.depth >= 0 && *record.depth <= 1)) return damaged("a depth is not from 0 to 1");
  if ((record.nll || record.floor_nll) && record.answer_tokens == 0) return damaged("a likelihood is of no tokens");
  record.agreement = json.at("agreement").get<bool>();
  record.right = json.at("right").get<bool>();
  record.text = json.at("wrote").get<std::string>();
  record.failed = json.at("failed").get<std::string>();
  return record;
}

Json cost_json(size_t setting, const RecordFile::Cost& cost) {
  return {{"setting", setting},
          {"kv_bytes_per_token", cost.kv_bytes_per_token},
          {"text_tokens", cost.text_tokens},
          {"text_seconds", cost.text_seconds},
          {"seconds", cost.seconds}};
}

Result<RecordFile::Cost> cost_from(const Json& json) {
  RecordFile::Cost cost;
  ASSIGN_OR_RETURN(cost.kv_bytes_per_token, whole_from<uint64_t>(json.at("kv_bytes_per_token")));
  ASSIGN_OR_RETURN(cost.text_tokens, whole_from<uint64_t>(json.at("text_tokens")));
  ASSIGN_OR_RETURN(cost.text_seconds, duration_from(json.at("text_seconds")));
  ASSIGN_OR_RETURN(cost.seconds, duration_from(json.at("seconds")));
  return cost;
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

// No figure depends on these.
constexpr const char* kOfTheMachine[] = {"simd_target", "threads"};

// Both are lines of the file: what became of bytes that are no UTF-8 is the same in both.
Status same_run(std::string_view there, std::string_view here) {
  Result<Json> before = parse_json(there), now = parse_json(here);
  if (!before || !before->is_object() || !before->contains("settings")) {
    return damaged("this is no file of records; give another folder");
  }
  for (const char* const name : kOfTheMachine) {
    before->erase(name);
    if (now) now->erase(name);
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

RecordFile::RecordFile(const RunFacts& facts) : known_(facts.settings.size()), families_(facts.families) {
  for (const std::string& setting : facts.settings) settings_.push_back({.setting = setting, .texts = {}, .tasks = {}});
  for (const RunFacts::Text& text : facts.texts) text_tokens_.push_back(text.tokens);
  for (Known& known : known_) known.texts.resize(facts.texts.size());
}
RecordFile::RecordFile(RecordFile&&) noexcept = default;
RecordFile& RecordFile::operator=(RecordFile&&) noexcept = default;
RecordFile::~RecordFile() = default;

Result<RecordFile> RecordFile::open(const std::string& path, const RunFacts& facts, bool fresh) {
  RecordFile file(facts);
  ASSIGN_OR_RETURN(file.lines_, Lines::open(path));
  if (fresh) RETURN_IF_ERROR(file.lines_->cut(0));
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

// A line of any kind: of a text (key "text"), of its rows ("rows_of_text"), of a task ("task"), else of what it cost.
Status RecordFile::keep(std::string_view line) {
  const Result<Json> parsed = parse_json(line);
  if (!parsed) return damaged("no record: " + parsed.error().message);
  const Json& json = *parsed;
  try {
    ASSIGN_OR_RETURN(const size_t setting, whole_from<size_t>(json.at("setting")));
    if (setting >= settings_.size()) return damaged("there is no setting " + std::to_string(setting));
    if (json.contains("text")) {
      ASSIGN_OR_RETURN(TextRecord record, text_from(json));
      return keep_text(setting, std::move(record));
    }
    if (json.contains("rows_of_text")) {
      ASSIGN_OR_RETURN(const uint32_t text, whole_from<uint32_t>(json.at("rows_of_text")));
      return keep_rows(setting, text, json.at("sha256").get<std::string>());
    }
    if (json.contains("task")) {
      ASSIGN_OR_RETURN(TaskRecord record, task_from(json));
      return keep_task(setting, std::move(record));
    }
    ASSIGN_OR_RETURN(const Cost cost, cost_from(json));
    keep_cost(setting, cost);
  } catch (const Json::exception&) {
    return damaged("no record: a field is missing or of another kind");
  }
  return {};
}

Status RecordFile::keep_text(size_t setting, TextRecord record) {
  const uint32_t text = record.text;
  if (text >= text_tokens_.size()) return damaged("there is no text " + std::to_string(text));
  const uint64_t positions = text_tokens_[text] > 0 ? text_tokens_[text] - 1 : 0;
  const uint64_t compared = setting > 0 ? positions : 0;
  if (record.nll.size() != positions || record.divergence.size() != compared || record.same_top.size() != compared) {
    return damaged("the record of text " + std::to_string(text) + " is not whole");
  }
  std::vector<TextRecord>& texts = settings_[setting].texts;
  std::optional<size_t>& place = known_[setting].texts[text];
  if (place) return damaged("text " + std::to_string(text) + " comes twice");
  place = texts.size();
  texts.push_back(std::move(record));
  return {};
}

Status RecordFile::keep_rows(size_t setting, uint32_t text, std::string sha256) {
  if (text >= text_tokens_.size() || !known_[setting].texts[text]) {
    return damaged("rows are of text " + std::to_string(text) + ", of which there is no record before");
  }
  if (sha256.size() != 2 * Sha256Digest().size() || sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return damaged("the SHA-256 of rows is " + kvarto::quoted(sha256));
  }
  settings_[setting].texts[*known_[setting].texts[text]].rows_sha256 = std::move(sha256);
  return {};
}

Status RecordFile::keep_task(size_t setting, TaskRecord record) {
  if (std::ranges::find(families_, record.family) == families_.end()) {
    return damaged("there is no family " + kvarto::quoted(record.family) + " in this run");
  }
  std::vector<TaskRecord>& tasks = settings_[setting].tasks;
  const bool fresh = known_[setting].tasks.emplace(record.id, tasks.size()).second;
  if (!fresh) return damaged("task " + kvarto::quoted(record.id) + " comes twice");
  tasks.push_back(std::move(record));
  return {};
}

void RecordFile::keep_cost(size_t setting, const Cost& cost) {
  SettingRecords& records = settings_[setting];
  Known& known = known_[setting];
  if (cost.kv_bytes_per_token > 0) records.kv_bytes_per_token = cost.kv_bytes_per_token;
  records.seconds += cost.seconds;
  known.text_tokens += cost.text_tokens;
  known.text_seconds += cost.text_seconds;
  records.prompt_tokens_per_s =
      known.text_seconds > 0 ? static_cast<double>(known.text_tokens) / known.text_seconds : 0;
}

Status RecordFile::add_line(const std::string& line) {
  RETURN_IF_ERROR(keep(line));
  return lines_->append(line);
}

const TextRecord* RecordFile::text(size_t setting, uint32_t text) const {
  const std::optional<size_t>& place = known_[setting].texts[text];
  return place ? &settings_[setting].texts[*place] : nullptr;
}

const TaskRecord* RecordFile::task(size_t setting, std::string_view id) const {
  const auto& places = known_[setting].tasks;
  const auto found = places.find(id);
  return found == places.end() ? nullptr : &settings_[setting].tasks[found->second];
}

Status RecordFile::add(size_t setting, const TextRecord& record) { return add_line(dump(text_json(setting, record))); }
Status RecordFile::add_rows(size_t setting, uint32_t text, const std::string& sha256) {
  return add_line(dump(rows_json(setting, text, sha256)));
}
Status RecordFile::add(size_t setting, const TaskRecord& record) { return add_line(dump(task_json(setting, record))); }

Status RecordFile::add_cost(size_t setting, const Cost& cost) { return add_line(dump(cost_json(setting, cost))); }

}  // namespace kvarto
