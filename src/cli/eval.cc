// `kvarto eval`: what a KV setting, or a server, loses against a baseline; with a report, and an exit code for CI.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "cli/eval_plan.h"
#include "cli/interrupt.h"
#include "cli/list.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "eval/engine_subject.h"
#include "eval/report.h"
#include "format/printable.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;

// --- who answers

// Loads what a run asks for, one after the other. Ctrl-C ends the engine's requests: the run keeps nothing of what
// comes after it.
class Contestants {
 public:
  explicit Contestants(EvalPlan& plan) : plan_(plan) {}
  Contestants(const Contestants&) = delete;
  Contestants& operator=(const Contestants&) = delete;

  // The first one, so that what it may fail with comes before anything is thrown away for it.
  Status prepare() {
    ASSIGN_OR_RETURN(first_, load(0));
    return {};
  }

  Result<Contestant> load(size_t setting) {
    if (setting == 0 && first_) return *std::exchange(first_, std::nullopt);
    engine_.reset();  // before there are two
    if (setting < plan_.settings.size()) return load_engine(setting);
    // Found once: what it is was settled then, and is asked for once.
    return Contestant{.subject = std::move(plan_.servers[setting - plan_.settings.size()].subject), .engine = nullptr};
  }

 private:
  Result<Contestant> load_engine(size_t index) {
    const Setting& setting = plan_.settings[index];
    Progress bar("loading " + printable(setting.name));
    EngineOptions options = plan_.options;
    options.progress = [&](size_t done, size_t total) { bar.show(done, total); };
    ASSIGN_OR_RETURN(engine_, load_setting(plan_.file, options, setting));
    running_.clear();
    engine_->observe([this](const StepReport& report) { watch(report); });
    std::unique_ptr<Subject> subject = engine_subject(*engine_, {.may_overflow = index > 0, .cancelled = interrupted});
    return Contestant{.subject = std::move(subject), .engine = engine_.get()};
  }

  void watch(const StepReport& report) {
    for (const AdmittedRequest& request : report.admitted) running_.push_back(request.request);
    if (interrupted()) {
      for (const RequestId id : running_) engine_->cancel(id);
    }
    if (report.running == 0 && report.waiting == 0) running_.clear();
  }

  EvalPlan& plan_;
  std::unique_ptr<Engine> engine_;
  std::optional<Contestant> first_;  // prepared
  std::vector<RequestId> running_;
};

// --- what is shown meanwhile

std::string time_text(double seconds) {
  const auto whole = static_cast<uint64_t>(std::ceil(seconds));
  if (whole < 60) return std::to_string(whole) + " s";
  const uint64_t minutes = (whole + 59) / 60;
  if (minutes < 60) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

// A bar on a terminal, else a line for each setting's texts and families, and for each tenth of the run.
class Shown {
 public:
  Shown(const EvalPlan& plan, bool quiet) : plan_(plan), quiet_(quiet) {}

  void show(const EvalProgress& progress) {
    if (quiet_) return;
    if (stderr_is_terminal()) {
      bar_.show(static_cast<size_t>(progress.done), static_cast<size_t>(progress.total), words(progress));
      return;
    }
    const double percent = progress.total > 0 ? 100 * progress.done / progress.total : 0;
    if (progress.setting == setting_ && progress.what == what_ && percent < next_percent_) return;
    note(words(progress) + ", " + std::to_string(std::lround(percent)) + " % of the run done");
    setting_ = progress.setting;
    what_ = progress.what;
    next_percent_ = percent + 10;
  }

 private:
  std::string words(const EvalProgress& progress) const {
    std::string text = printable(plan_.work.facts.settings[progress.setting]) + ": " + std::string(progress.what) +
                       ", " + std::to_string(progress.pieces_done) + " of " + std::to_string(progress.pieces) +
                       (progress.what == kEvalTexts ? " pieces" : " tasks");
    if (progress.seconds_left >= 0) text += ", about " + time_text(progress.seconds_left) + " left";
    return text;
  }

  const EvalPlan& plan_;
  const bool quiet_;
  Progress bar_{"eval"};
  size_t setting_ = SIZE_MAX;
  std::string what_;
  double next_percent_ = 0;
};

// --- the folder

struct Paths {
  explicit Paths(const std::string& folder)
      : records(folder + "/records.jsonl"), json(folder + "/report.json"), html(folder + "/report.html") {}
  std::string records, json, html;
};

Status make_folder(const EvalFlags& flags) {
  std::error_code error;
  fs::create_directories(flags.output, error);
  if (std::error_code ignored; !fs::is_directory(flags.output, ignored)) {
    return fail(ErrorCode::io, "--output " + printable(flags.output) + ": cannot make the folder" +
                                   (error ? ": " + error.message() : "") + "; give another one");
  }
  return {};
}

// What an earlier run left beside its records.
Status remove_results(const EvalFlags& flags, const Paths& paths) {
  std::error_code error;
  for (const std::string& path : {paths.json, paths.html}) {
    if (fs::remove(path, error); error) return fail(ErrorCode::io, path + ": cannot remove: " + error.message());
  }
  return remove_all_rows(flags.output);
}

void say_what_is_there(const EvalPlan& plan, const RecordFile& records) {
  size_t done = 0;
  for (const SettingRecords& setting : records.settings()) done += setting.texts.size() + setting.tasks.size();
  const RunFacts& facts = plan.work.facts;
  const size_t with_tasks = facts.settings.size() - (facts.noise_floor ? 1 : 0);
  const size_t all = plan.work.engines * plan.work.texts.size() + with_tasks * plan.work.tasks.size();
  if (done == 0) return;
  note("going on with the run in " + plan.work.folder + ": " + std::to_string(done) + " of " + std::to_string(all) +
       " texts and tasks are done");
}

// --- the run

Result<std::vector<SettingRecords>> run_plan(EvalPlan& plan, Contestants& contestants, RecordFile& records,
                                             bool quiet) {
  plan.work.contestant = [&](size_t setting) { return contestants.load(setting); };
  Shown shown(plan, quiet);
  return run_eval(plan.work, records, [&](const EvalProgress& progress) {
    shown.show(progress);
    return !interrupted();
  });
}

Result<int> report_run(const EvalFlags& flags, const EvalPlan& plan, const Paths& paths,
                       const std::vector<SettingRecords>& records) {
  const EvalReport report = make_report(plan.work.facts, records);
  const std::string json = report_json(report);
  RETURN_IF_ERROR(write_file_atomically(paths.json, json));
  RETURN_IF_ERROR(write_file_atomically(paths.html, report_html(report)));
  RETURN_IF_ERROR(put(flags.json ? json : report_table(report)));
  if (!flags.model.quiet) note("report: " + paths.html + ", " + paths.json);
  if (!flags.max_drop) return 0;
  const std::string over = over_max_drop(report, *flags.max_drop);
  if (over.empty()) return 0;
  note(over);
  return 1;
}

Result<int> eval(const EvalFlags& flags) {
  ASSIGN_OR_RETURN(EvalPlan plan, plan_eval(flags));
  const Paths paths(flags.output);
  RETURN_IF_ERROR(make_folder(flags));
  Contestants contestants(plan);
  if (flags.fresh) RETURN_IF_ERROR(contestants.prepare());
  ASSIGN_OR_RETURN(RecordFile records, RecordFile::open(paths.records, plan.work.facts, flags.fresh));
  // Only now: the folder is locked, and nobody's run is in progress in it.
  if (flags.fresh) RETURN_IF_ERROR(remove_results(flags, paths));
  const bool quiet = flags.model.quiet;
  if (!quiet) {
    for (const std::string& text : plan.notes) note(text);
    say_what_is_there(plan, records);
  }
  Result<std::vector<SettingRecords>> found;
  {
    const InterruptScope scope;
    found = run_plan(plan, contestants, records, quiet);
  }
  if (found) return report_run(flags, plan, paths, *found);
  if (!interrupted() || found.error().code != ErrorCode::cancelled) {
    return tl::unexpected<Error>(std::move(found.error()));
  }
  note("stopped; what is done is kept in " + flags.output + ": the same command" +
       (flags.fresh ? " without --fresh" : "") + " goes on");
  return kExitInterrupted;
}

void declare_flags(CLI::App& app, EvalFlags& flags) {
  app.add_option("--candidate", flags.candidates,
                 "A setting, or several joined by ',', compared with the baseline; may be repeated [kv=bf16]")
      ->allow_extra_args(false);
  app.add_option("--url", flags.urls,
                 "A server of OpenAI's API as one more candidate; without MODEL the first one is the baseline")
      ->allow_extra_args(false);
  app.add_option("--api-key", flags.api_key, "Sent to servers as Authorization: Bearer KEY");
  app.add_option("--served-model", flags.served_model, "The model's name there; without it the first of /v1/models");
  add_count(app, "--context", flags.context,
            "Longest prompt, and length of the texts, in tokens [4096, or all that the model has]");
  add_count(app, "--samples", flags.samples, "Tasks of each family [40]");
  add_count(app, "--seed", flags.seed, "Of the tasks");
  app.add_option("--text", flags.texts, "A text to measure on instead of Debian's licences; may be repeated")
      ->allow_extra_args(false);
  add_count(app, "--text-pieces", flags.text_pieces,
            "Pieces of a context's length, taken from the texts in turn; one of each --text at least [2]");
  app.add_option("--tasks", flags.tasks, "Your own questions: JSON lines with prompt or messages, and answer");
  app.add_option("--only", flags.only,
                 "Some families only, joined by ','; the word text stands for the texts, none for nothing but --tasks");
  app.add_option("--output", flags.output, "Folder of the records and the report; a stopped run goes on from there");
  app.add_flag("--dump", flags.dump, "Keep the log-probabilities of each token of the texts as NumPy files, too");
  app.add_flag("--json", flags.json, "Print the report as JSON");
  app.add_option("--max-drop", flags.max_drop,
                 "Exit code 1 when a skill loses more than this share of answers or of retention (such as 0.02), or a "
                 "verdict is unsafe");
  app.add_flag("--fresh", flags.fresh, "Begin anew where the folder has another run");
  app.add_flag("--quick", flags.quick, "A short look: --context 1024 --samples 8 --text-pieces 1 unless given");
  add_engine_flags(app, flags.model);
}

std::string explanation() {
  std::string text =
      "Settings: parts joined by ':', such as k=f16:v=bf16.\n"
      "  kv=DTYPE, k=DTYPE, v=DTYPE    how keys and values are stored: f16, bf16, f32\n"
      "  noise=DB, hide=SHARE          planted faults, to see that they are seen: noise on keys at that signal-to-\n"
      "                                noise ratio; a share of tokens hidden from later ones\n"
      "Families:\n";
  for (const Family& family : families()) {
    const std::string name(family.name);
    text += "  " + name + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ');
    text += std::string(family.summary) + "\n";
  }
  return text +
         "Exit codes: 0; 1 after an error, or when --max-drop is exceeded; 2 when a flag is wrong; 130 after Ctrl-C\n"
         "(then the same command goes on).";
}

}  // namespace

VerbAction declare_eval(CLI::App& app) {
  const auto flags = std::make_shared<EvalFlags>();
  add_model_flag(app, flags->model, /*required=*/false);
  const CLI::Option* const baseline =
      app.add_option("--baseline", flags->baseline, "The setting that others are compared with");
  declare_flags(app, *flags);
  app.footer(app.get_footer() + "\n" + explanation());
  return [flags, baseline] {
    flags->baseline_given = baseline->count() > 0;
    return eval(*flags);
  };
}

}  // namespace kvarto
