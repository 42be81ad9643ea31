#include "eval/run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "eval/judge.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Texts of people and models: about four bytes a token.
double about_tokens(size_t bytes) { return static_cast<double>(bytes) / 4; }

double prompt_tokens(const Task& task) {
  if (task.length_tokens > 0) return task.length_tokens;
  return about_tokens(task.prompt.size() + task.messages.size() + task.answer.size());
}

std::string rows_folder(const std::string& folder) { return folder + "/logprobs"; }

// There is an answer, and it is the one that is wanted.
bool has_likelihood(const Task& task) { return !task.answer.empty() && task.judge != Judge::agreement; }
// The likelihood of the whole answer does not say whether another one would be right as well.
bool may_be_right_otherwise(const Task& task) {
  return task.judge == Judge::agreement || task.judge == Judge::last_number;
}

class EvalRun {
 public:
  EvalRun(const EvalWork& work, RecordFile& records, const std::function<bool(const EvalProgress&)>& progress)
      : work_(work), records_(records), progress_(progress) {
    for (size_t setting = 0; setting < settings(); ++setting) {
      for (uint32_t text = 0; has_texts(setting) && text < work_.texts.size(); ++text) {
        count(text_cost(text), records_.has_text(setting, text));
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
  // A task whose answer is still to be generated. `cost` was not counted yet.
  struct Pending {
    const Task* task = nullptr;
    TaskRecord record;
    double cost = 0;
    bool writes_answer = false;  // it need not be generated: the answer is what would come
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
    setting_tokens_ += cost;
    const double seconds = seconds_since(start_);
    const bool known = done_now_ > 0 && seconds > 1;
    const double left = known ? std::max(0.0, total_ - done_) * seconds / done_now_ : -1;
    const EvalProgress now{.setting = setting_, .what = what_, .done = done_, .total = total_, .seconds_left = left};
    if (!progress_(now)) return fail(ErrorCode::cancelled, "");
    return {};
  }

  // --- a setting

  Status run_setting(size_t setting) {
    setting_ = setting;
    const std::vector<uint32_t> texts = missing_texts(setting);
    const std::vector<const Task*> tasks = missing_tasks(setting);
    if (texts.empty() && tasks.empty()) return {};
    what_ = texts.empty() ? std::string_view(tasks.front()->family) : "texts";
    RETURN_IF_ERROR(go_on(0));
    ASSIGN_OR_RETURN(const Contestant contestant, work_.contestant(setting));
    const Clock::time_point start = Clock::now();
    setting_tokens_ = 0;
    const Status done = [&]() -> Status {
      for (const uint32_t text : texts) RETURN_IF_ERROR(score(setting, text, *contestant.engine));
      return run_tasks(setting, tasks, *contestant.subject);
    }();
    // Also of a run that was stopped.
    const uint64_t kv_bytes = contestant.engine != nullptr ? contestant.engine->info().kv_bytes_per_token : 0;
    const Status noted =
        records_.add_cost(setting, kv_bytes, static_cast<uint64_t>(setting_tokens_), seconds_since(start));
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
      const bool there = records_.has_text(setting, text) && (!wants_rows(setting, text) || rows_of(setting, text));
      if (!there) missing.push_back(text);
    }
    return missing;
  }

  bool wants_rows(size_t setting, uint32_t text) const {
    if (work_.keep_rows) return true;
    if (setting > 0) return false;
    for (size_t candidate = 1; candidate < work_.engines; ++candidate) {
      if (!records_.has_text(candidate, text)) return true;
    }
    return false;
  }

  // None where the file is missing or not of this text: it is made again then.
  std::optional<std::vector<TokenRow>> rows_of(size_t setting, uint32_t text) const {
    Result<std::vector<TokenRow>> rows = read_rows(rows_path(work_.folder, setting, text));
    const std::vector<TokenId>& ids = work_.texts[text].ids;
    if (!rows || rows->size() + 1 != ids.size()) return std::nullopt;
    for (size_t i = 0; i < rows->size(); ++i) {
      if ((*rows)[i].token != ids[i + 1]) return std::nullopt;
    }
    return *std::move(rows);
  }

  Status score(size_t setting, uint32_t text, Engine& engine) {
    what_ = "texts";
    std::vector<TokenRow> baseline, rows;
    if (setting > 0) {
      std::optional<std::vector<TokenRow>> stored = rows_of(0, text);
      if (!stored) {
        return fail(ErrorCode::io, rows_path(work_.folder, 0, text) + " went missing; run again, and it is made anew");
      }
      baseline = *std::move(stored);
    }
    const bool keep = wants_rows(setting, text), known = records_.has_text(setting, text);
    TextRecord record{.text = text, .nll = {}, .divergence = {}, .same_top = {}};
    RETURN_IF_ERROR(score_text(engine, work_.texts[text].ids, baseline, [&](const TokenRow& row) {
      if (setting > 0) {
        const TokenRow& before = baseline[record.nll.size()];
        record.divergence.push_back(divergence(before, row));
        record.same_top.push_back(row.argmax == before.argmax ? 1 : 0);
      }
      record.nll.push_back(-row.logprob);
      if (keep) rows.push_back(row);
      return go_on(known ? 0 : 1);
    }));
    // Rows first: where a record is, they are, or they are not wanted.
    if (keep) RETURN_IF_ERROR(store(setting, text, rows));
    if (known) return {};
    RETURN_IF_ERROR(records_.add(setting, record));
    return go_on(text_cost(text) - static_cast<double>(record.nll.size()));
  }

  Status store(size_t setting, uint32_t text, std::span<const TokenRow> rows) const {
    std::error_code error;
    fs::create_directories(rows_folder(work_.folder), error);
    if (error) return fail(ErrorCode::io, rows_folder(work_.folder) + ": cannot make the folder: " + error.message());
    return write_rows(rows_path(work_.folder, setting, text), rows);
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
    for (size_t first = 0; first < tasks.size();) {
      size_t end = first + 1;
      while (end < tasks.size() && end - first < kTasksTogether && tasks[end]->family == tasks[first]->family) ++end;
      what_ = tasks[first]->family;
      RETURN_IF_ERROR(run_together(setting, tasks.subspan(first, end - first), subject));
      first = end;
    }
    return {};
  }

  Status run_together(size_t setting, std::span<const Task* const> tasks, Subject& subject) {
    std::vector<Pending> unwritten;
    std::vector<const Task*> asked;
    for (const Task* const task : tasks) {
      ASSIGN_OR_RETURN(Pending pending, ask(setting, *task, subject));
      if (pending.writes_answer) {
        RETURN_IF_ERROR(add(setting, pending, std::string(cut_at_stop(*task, task->answer))));
      } else {
        asked.push_back(task);
        unwritten.push_back(std::move(pending));
      }
    }
    if (asked.empty()) return {};
    RETURN_IF_ERROR(go_on(0));
    const Status done = subject.generate(
        asked, [&](size_t index, std::string text) { return add(setting, unwritten[index], std::move(text)); });
    RETURN_IF_ERROR(go_on(0));  // where this ended early, its own error says nothing
    return done;
  }

  // All but what it writes.
  Result<Pending> ask(size_t setting, const Task& task, Subject& subject) {
    Pending pending{.task = &task,
                    .record = {.id = task.id,
                               .family = task.family,
                               .skill = task.skill,
                               .length_tokens = task.length_tokens,
                               .depth = task.depth,
                               .nll = {},
                               .floor_nll = {},
                               .text = {}},
                    .cost = task_cost(setting, task)};
    if (!has_likelihood(task)) return pending;
    ASSIGN_OR_RETURN(const std::optional<Likelihood> answer, likelihood(task, /*floor=*/false, subject));
    if (!answer) return pending;
    pending.record.nll = answer->nll;
    pending.record.answer_tokens = answer->tokens;
    pending.writes_answer = answer->greedy && !may_be_right_otherwise(task);
    if (setting == 0 && !task.floor_prompt.empty()) {
      ASSIGN_OR_RETURN(const std::optional<Likelihood> floor, likelihood(task, /*floor=*/true, subject));
      if (floor) pending.record.floor_nll = floor->nll;
    }
    RETURN_IF_ERROR(go_on(std::exchange(pending.cost, 0)));
    return pending;
  }

  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor, Subject& subject) {
    Result<std::optional<Likelihood>> found = subject.likelihood(task, floor);
    RETURN_IF_ERROR(go_on(0));
    return found;
  }

  Status add(size_t setting, Pending& pending, std::string text) {
    RETURN_IF_ERROR(go_on(std::exchange(pending.cost, 0)));
    const TaskRecord* const before = setting > 0 ? records_.task(0, pending.task->id) : nullptr;
    pending.record.right = is_right(*pending.task, text, before != nullptr ? before->text : text);
    pending.record.text = std::move(text);
    return records_.add(setting, pending.record);
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
  double setting_tokens_ = 0;
  size_t setting_ = 0;
  std::string_view what_ = "texts";
};

}  // namespace

std::string rows_path(const std::string& folder, size_t setting, uint32_t text) {
  return rows_folder(folder) + "/" + std::to_string(setting) + "-" + std::to_string(text) + ".npy";
}

Result<std::vector<SettingRecords>> run_eval(const EvalWork& work, RecordFile& records,
                                             const std::function<bool(const EvalProgress&)>& progress) {
  return EvalRun(work, records, progress).run();
}

}  // namespace kvarto
