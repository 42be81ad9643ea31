#include "eval/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "eval/judge.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// How long the rest may take is not said before so much is done: what comes first is not like the rest.
constexpr double kLeastSeconds = 10, kLeastShare = 0.05;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Texts of people and models: about four bytes a token.
double about_tokens(size_t bytes) { return static_cast<double>(bytes) / 4; }

double prompt_tokens(const Task& task) {
  if (task.length_tokens > 0) return task.length_tokens;
  return about_tokens(task.prompt.size() + task.messages.size() + task.answer.size());
}

std::string rows_folder(const std::string& folder) { return folder + "/logprobs"; }

// "1-0.npy": see rows_path().
bool is_rows_name(std::string_view name) {
  constexpr std::string_view kEnd = ".npy";
  if (!name.ends_with(kEnd)) return false;
  name.remove_suffix(kEnd.size());
  const auto is_number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  const size_t dash = name.find('-');
  return dash != std::string_view::npos && is_number(name.substr(0, dash)) && is_number(name.substr(dash + 1));
}

// There is no answer that stands for itself: what the baseline writes is measured, under the baseline and the others.
bool measures_what_is_written(const Task& task) {
  return task.judge == Judge::agreement || task.judge == Judge::contains;
}

// The likelihood of the whole answer does not say whether another one would be right as well.
bool may_be_right_otherwise(const Task& task) {
  return measures_what_is_written(task) || task.judge == Judge::last_number;
}

bool are_of(std::span<const TokenRow> rows, std::span<const TokenId> ids) {
  bool equal = rows.size() + 1 == ids.size();
  for (size_t i = 0; equal && i < rows.size(); ++i) {
    equal = rows[i].position == static_cast<int32_t>(i + 1) && rows[i].token == ids[i + 1];
  }
  return equal;
}

// This task alone: see Subject.
bool is_refusal(const Error& error) { return error.code == ErrorCode::invalid_argument; }

// What overflowed is beyond any number.
double finite_or_infinite(double value) {
  return std::isfinite(value) ? value : std::numeric_limits<double>::infinity();
}

class EvalRun {
 public:
  EvalRun(const EvalWork& work, RecordFile& records, const std::function<bool(const EvalProgress&)>& progress)
      : work_(work), records_(records), progress_(progress) {
    for (size_t setting = 0; setting < settings(); ++setting) {
      for (uint32_t text = 0; has_texts(setting) && text < work_.texts.size(); ++text) {
        count(text_cost(text), records_.text(setting, text) != nullptr);
      }
      if (!has_tasks(setting)) continue;
      for (const Task& task : work_.tasks) count(task_cost(setting, task), records_.task(setting, task.id) != nullptr);
    }
  }

  Result<std::vector<SettingRecords>> run() {
    for (size_t setting = 0; setting < settings(); ++setting) RETURN_IF_ERROR(run_setting(setting));
    remove_rows();
    return in_order();
  }

 private:
  // A task on its way to its record. `cost` was not counted yet.
  struct Pending {
    const Task* task = nullptr;
    TaskRecord record;
    double cost = 0;
    bool writes_answer = false;  // it need not be generated: the answer is what would come
    bool ended = false;          // nothing of it is left to ask
  };

  size_t settings() const { return work_.facts.settings.size(); }
  bool has_texts(size_t setting) const { return setting < work_.engines; }
  bool has_tasks(size_t setting) const { return work_.facts.noise_floor != setting; }

  // --- progress

  double text_cost(uint32_t text) const { return static_cast<double>(work_.texts[text].ids.size()); }
  double task_cost(size_t setting, const Task& task) const {
    return prompt_tokens(task) + (setting == 0 ? about_tokens(task.floor_prompt.size()) : 0);
  }
  void count(double cost, bool done) {
    total_ += cost;
    if (done) done_ += cost;
  }

  // `cost` is done. An error when the run shall end.
  Status go_on(double cost) {
    done_ += cost;
    done_now_ += cost;
    const double seconds = seconds_since(start_), left = std::max(0.0, total_ - done_);
    const bool known = seconds >= kLeastSeconds && done_now_ > 0 && done_now_ >= kLeastShare * (done_now_ + left);
    const SettingRecords& records = records_.settings()[setting_];
    const bool texts = what_ == kEvalTexts;
    const EvalProgress now{.setting = setting_,
                           .what = what_,
                           .pieces_done = texts ? records.texts.size() : records.tasks.size(),
                           .pieces = texts ? work_.texts.size() : work_.tasks.size(),
                           .done = done_,
                           .total = total_,
                           .seconds_left = known ? left * seconds / done_now_ : -1};
    if (!progress_(now)) return fail(ErrorCode::cancelled, "");
    return {};
  }

  // --- a setting

  Status run_setting(size_t setting) {
    setting_ = setting;
    const std::vector<uint32_t> texts = missing_texts(setting);
    const std::vector<const Task*> tasks = missing_tasks(setting);
    if (texts.empty() && tasks.empty()) return {};
    what_ = texts.empty() ? std::string_view(tasks.front()->family) : kEvalTexts;
    RETURN_IF_ERROR(go_on(0));
    ASSIGN_OR_RETURN(const Contestant contestant, work_.contestant(setting));
    const Clock::time_point start = Clock::now();
    cost_ = {};
    const Status done = [&]() -> Status {
      for (const uint32_t text : texts) RETURN_IF_ERROR(score(setting, text, *contestant.engine));
      return run_tasks(setting, tasks, *contestant.subject);
    }();
    // Also of a run that was stopped.
    if (contestant.engine != nullptr) cost_.kv_bytes_per_token = contestant.engine->info().kv_bytes_per_token;
    cost_.seconds = seconds_since(start);
    const Status noted = records_.add_cost(setting, cost_);
    return done ? noted : done;
  }

  std::vector<const Task*> missing_tasks(size_t setting) const {
    std::vector<const Task*> missing;
    if (!has_tasks(setting)) return missing;
    for (const Task& task : work_.tasks) {
      if (records_.task(setting, task.id) == nullptr) missing.push_back(&task);
    }
    return missing;
  }

  // --- texts

  // Also those whose record is there, but not the rows that are still wanted.
  std::vector<uint32_t> missing_texts(size_t setting) const {
    std::vector<uint32_t> missing;
    if (!has_texts(setting)) return missing;
    for (uint32_t text = 0; text < work_.texts.size(); ++text) {
      const bool there =
          records_.text(setting, text) != nullptr && (!wants_rows(setting, text) || rows_of(setting, text).has_value());
      if (!there) missing.push_back(text);
    }
    return missing;
  }

  bool wants_rows(size_t setting, uint32_t text) const {
    if (work_.keep_rows) return true;
    if (setting > 0) return false;
    for (size_t candidate = 1; candidate < work_.engines; ++candidate) {
      if (records_.text(candidate, text) == nullptr) return true;
    }
    return false;
  }

  // Those that were written when the text was measured, or an error: they are missing, damaged, or another run's.
  Result<std::vector<TokenRow>> rows_of(size_t setting, uint32_t text) const {
    const std::string path = rows_path(work_.folder, setting, text);
    const TextRecord* const record = records_.text(setting, text);
    if (record != nullptr && !record->rows_sha256.empty()) {
      Result<std::vector<TokenRow>> rows = read_rows(path, record->rows_sha256);
      if (rows && are_of(*rows, work_.texts[text].ids)) return rows;
    }
    return fail(ErrorCode::io, path + " is missing or not what was written there; run again, and it is made anew");
  }

  Status score(size_t setting, uint32_t text, Engine& engine) {
    what_ = kEvalTexts;
    std::vector<TokenRow> baseline, rows;
    if (setting > 0) {
      ASSIGN_OR_RETURN(baseline, rows_of(0, text));
    }
    const bool keep = wants_rows(setting, text), known = records_.text(setting, text) != nullptr;
    const Clock::time_point start = Clock::now();
    TextRecord record{.text = text, .nll = {}, .divergence = {}, .same_top = {}};
    const Status scored = score_text(engine, work_.texts[text].ids, baseline, [&](const TokenRow& row) {
      if (setting > 0) {
        const TokenRow& before = baseline[record.nll.size()];
        record.divergence.push_back(finite_or_infinite(divergence(before, row)));
        record.same_top.push_back(row.argmax == before.argmax ? 1 : 0);
      }
      record.nll.push_back(static_cast<float>(finite_or_infinite(-double{row.logprob})));
      if (keep) rows.push_back(row);
      return go_on(known ? 0 : 1);
    });
    cost_.text_tokens += record.nll.size();
    cost_.text_seconds += seconds_since(start);
    RETURN_IF_ERROR(scored);
    if (!known) RETURN_IF_ERROR(records_.add(setting, record));
    if (keep) RETURN_IF_ERROR(store(setting, text, rows));
    return go_on(known ? 0 : text_cost(text) - static_cast<double>(record.nll.size()));
  }

  // Behind the record: where a run ends in between, rows are made again.
  Status store(size_t setting, uint32_t text, std::span<const TokenRow> rows) {
    std::error_code error;
    fs::create_directories(rows_folder(work_.folder), error);
    if (error) return fail(ErrorCode::io, rows_folder(work_.folder) + ": cannot make the folder: " + error.message());
    ASSIGN_OR_RETURN(const std::string sha256, write_rows(rows_path(work_.folder, setting, text), rows));
    if (records_.text(setting, text)->rows_sha256 == sha256) return {};
    return records_.add_rows(setting, text, sha256);
  }

  // A dump of an earlier run, which has a candidate's rows, stays.
  void remove_rows() const {
    if (work_.keep_rows || work_.engines < 2) return;
    std::error_code ignored;
    for (size_t setting = 1; setting < work_.engines; ++setting) {
      for (uint32_t text = 0; text < work_.texts.size(); ++text) {
        if (fs::exists(rows_path(work_.folder, setting, text), ignored)) return;
      }
    }
    for (uint32_t text = 0; text < work_.texts.size(); ++text) fs::remove(rows_path(work_.folder, 0, text), ignored);
    fs::remove(rows_folder(work_.folder), ignored);  // only when empty
  }

  // --- tasks

  Status run_tasks(size_t setting, std::span<const Task* const> tasks, Subject& subject) {
    refused_.clear();
    answered_ = std::ranges::any_of(records_.settings()[setting].tasks,
                                    [](const TaskRecord& record) { return record.failed.empty(); });
    for (size_t first = 0; first < tasks.size();) {
      size_t end = first + 1;
      while (end < tasks.size() && end - first < kTasksTogether && tasks[end]->family == tasks[first]->family) ++end;
      what_ = tasks[first]->family;
      RETURN_IF_ERROR(run_together(setting, tasks.subspan(first, end - first), subject));
      first = end;
    }
    return refused_.empty() ? Status() : refused_by_all();
  }

  Status run_together(size_t setting, std::span<const Task* const> tasks, Subject& subject) {
    std::vector<Pending> unwritten;
    std::vector<const Task*> asked;
    for (const Task* const task : tasks) {
      Pending pending = pending_of(setting, *task);
      RETURN_IF_ERROR(ask(setting, pending, subject));
      if (pending.writes_answer) {
        RETURN_IF_ERROR(add(setting, pending, std::string(cut_at_stop(*task, task->answer))));
      } else if (!pending.ended) {
        asked.push_back(task);
        unwritten.push_back(std::move(pending));
      }
    }
    if (asked.empty()) return {};
    RETURN_IF_ERROR(go_on(0));
    const Status done = subject.generate(asked, [&](size_t index, Result<std::string> text) {
      return take(setting, unwritten[index], std::move(text));
    });
    RETURN_IF_ERROR(go_on(0));  // where this ended early, its own error says nothing
    RETURN_IF_ERROR(done);
    for (Pending& pending : unwritten) {
      if (!pending.ended) RETURN_IF_ERROR(measure_own(pending, subject));
    }
    return {};
  }

  Pending pending_of(size_t setting, const Task& task) const {
    Pending pending{.task = &task, .record = {}, .cost = task_cost(setting, task)};
    TaskRecord& record = pending.record;
    record.id = task.id;
    record.family = task.family;
    record.group = task.group;
    record.skill = task.skill;
    record.length_tokens = task.length_tokens;
    record.depth = task.depth;
    record.agreement = task.judge == Judge::agreement;
    return pending;
  }

  // The baseline's record, which every setting but the baseline comes after.
  const TaskRecord& baseline_of(const Task& task) const {
    const TaskRecord* const record = records_.task(0, task.id);
    CHECK(record != nullptr, "a candidate's task " + task.id + " has no record of the baseline");
    return *record;
  }

  // All but what it writes.
  Status ask(size_t setting, Pending& pending, Subject& subject) {
    const Task& task = *pending.task;
    if (measures_what_is_written(task)) {
      // The baseline writes it first.
      return setting == 0 ? Status() : measure(setting, pending, baseline_of(task).text, subject);
    }
    RETURN_IF_ERROR(measure(setting, pending, task.answer, subject));
    if (pending.ended || !pending.record.nll) return {};
    if (setting == 0 && !task.floor_prompt.empty()) {
      Result<std::optional<Likelihood>> floor = likelihood(task, /*floor=*/true, subject);
      if (!floor) return refuse(setting, pending, floor.error());
      if (*floor) pending.record.floor_nll = (*floor)->nll;
    }
    return go_on(std::exchange(pending.cost, 0));
  }

  // How likely `answer` is.
  Status measure(size_t setting, Pending& pending, const std::string& answer, Subject& subject) {
    if (answer.empty()) return {};
    std::optional<Task> other;
    if (answer != pending.task->answer) {
      other = *pending.task;
      other->answer = answer;
    }
    Result<std::optional<Likelihood>> found = likelihood(other ? *other : *pending.task, /*floor=*/false, subject);
    if (!found) return refuse(setting, pending, found.error());
    if (!*found || (*found)->tokens == 0) return {};  // of no tokens: white space that a tokenizer drops
    pending.record.nll = (*found)->nll;
    pending.record.answer_tokens = (*found)->tokens;
    pending.writes_answer = (*found)->greedy && !may_be_right_otherwise(*pending.task);
    return {};
  }

  // What the baseline wrote.
  Status measure_own(Pending& pending, Subject& subject) {
    std::string text = std::move(pending.record.text);
    RETURN_IF_ERROR(measure(/*setting=*/0, pending, text, subject));
    return pending.ended ? Status() : add(/*setting=*/0, pending, std::move(text));
  }

  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor, Subject& subject) {
    Result<std::optional<Likelihood>> found = subject.likelihood(task, floor);
    RETURN_IF_ERROR(go_on(0));
    return found;
  }

  // What it wrote.
  Status take(size_t setting, Pending& pending, Result<std::string> text) {
    if (!text) return refuse(setting, pending, text.error());
    if (setting > 0 || !measures_what_is_written(*pending.task)) return add(setting, pending, *std::move(text));
    pending.record.text = *std::move(text);  // its likelihood follows when nothing else is on its way
    return go_on(0);
  }

  Status add(size_t setting, Pending& pending, std::string text) {
    const Task& task = *pending.task;
    RETURN_IF_ERROR(go_on(std::exchange(pending.cost, 0)));
    pending.ended = true;
    pending.record.right = is_right(task, text, setting > 0 ? baseline_of(task).text : text);
    pending.record.text = std::move(text);
    answered_ = true;
    RETURN_IF_ERROR(keep_refused(setting));
    return records_.add(setting, pending.record);
  }

  // --- tasks that are refused

  Status refuse(size_t setting, Pending& pending, const Error& error) {
    if (!is_refusal(error)) return tl::unexpected<Error>(error);
    RETURN_IF_ERROR(go_on(std::exchange(pending.cost, 0)));
    pending.ended = true;
    pending.writes_answer = false;
    TaskRecord& record = pending.record;
    record.nll = record.floor_nll = std::nullopt;
    record.answer_tokens = 0;
    record.text.clear();
    record.failed = error.message.empty() ? "refused" : error.message;
    refused_.push_back(std::move(record));
    if (answered_) return keep_refused(setting);
    return refused_.size() < kMostRefused ? Status() : refused_by_all();
  }

  Status keep_refused(size_t setting) {
    for (const TaskRecord& record : std::exchange(refused_, {})) RETURN_IF_ERROR(records_.add(setting, record));
    return {};
  }

  Status refused_by_all() const {
    return fail(ErrorCode::invalid_argument, work_.facts.settings[setting_] + " refuses each of its tasks, " +
                                                 std::to_string(refused_.size()) +
                                                 " in a row: " + refused_.back().failed);
  }

  // --- the end

  // Tasks are recorded as they end, which no figure may depend on.
  std::vector<SettingRecords> in_order() const {
    std::unordered_map<std::string_view, size_t> places;
    for (const Task& task : work_.tasks) places.emplace(task.id, places.size());
    std::vector<SettingRecords> all = records_.settings();
    for (SettingRecords& setting : all) {
      std::ranges::sort(setting.texts, {}, &TextRecord::text);
      std::erase_if(setting.tasks, [&](const TaskRecord& task) { return !places.contains(task.id); });
      std::ranges::sort(setting.tasks, {}, [&](const TaskRecord& task) { return places.at(task.id); });
    }
    return all;
  }

  const EvalWork& work_;
  RecordFile& records_;
  const std::function<bool(const EvalProgress&)>& progress_;
  const Clock::time_point start_ = Clock::now();
  double total_ = 0, done_ = 0, done_now_ = 0;  // prompt tokens; of this call
  size_t setting_ = 0;
  RecordFile::Cost cost_;            // of the setting, in this call
  bool answered_ = false;            // a task of the setting was not refused
  std::vector<TaskRecord> refused_;  // before any was answered
  std::string_view what_ = kEvalTexts;
};

}  // namespace

std::string rows_path(const std::string& folder, size_t setting, uint32_t text) {
  return rows_folder(folder) + "/" + std::to_string(setting) + "-" + std::to_string(text) + ".npy";
}

Status remove_all_rows(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> rows;
  for (fs::directory_iterator entry(rows_folder(folder), error), end; !error && entry != end; entry.increment(error)) {
    if (is_rows_name(entry->path().filename().string())) rows.push_back(entry->path());
  }
  for (const fs::path& path : rows) {
    if (fs::remove(path, error); error) {
      return fail(ErrorCode::io, path.string() + ": cannot remove: " + error.message());
    }
  }
  fs::remove(rows_folder(folder), error);  // only when empty
  return {};
}

Result<std::vector<SettingRecords>> run_eval(const EvalWork& work, RecordFile& records,
                                             const std::function<bool(const EvalProgress&)>& progress) {
  return EvalRun(work, records, progress).run();
}

}  // namespace kvarto
