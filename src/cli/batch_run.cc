// `kvarto run --prompts`: many prompts at once, answered in input order.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/batch_file.h"
#include "cli/batch_line.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/run.h"

namespace kvarto {
namespace {

struct InputLine {
  size_t number = 0;  // in the file, from 1; blank ones count
  std::string text;
};

struct Job {
  size_t index = 0;  // of the input line among those that are not blank
  InputLine source;
  BatchLine line;  // request.prompt is filled in
};

std::vector<InputLine> split_lines(const std::string& content) {
  std::vector<InputLine> lines;
  size_t number = 1;
  for (size_t at = 0; at < content.size(); ++number) {
    const size_t end = std::min(content.find('\n', at), content.size());
    std::string line = content.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back({number, std::move(line)});
    at = end + 1;
  }
  return lines;
}

// All that an answer depends on. Threads and memory change no byte of a text, so a run may go on with others.
std::string identity_of(const RunFlags& flags, const Engine& engine, const std::string& content) {
  const SamplingFlags& s = flags.sampling;
  const SamplingParams p = sampling_params(s, 0.0f);
  nlohmann::ordered_json json;
  json["model"] = engine.info().model_fingerprint;
  json["model_name"] = engine.info().model_name;
  json["numerics"] = engine.info().numerics;
  json["kv_dtype"] = engine.info().kv_dtype;
  json["max_model_len"] = flags.model.engine.max_model_len;  // what was asked for; a plan's choice varies with memory
  json["system"] = flags.system;
  json["raw"] = flags.raw;
  json["sampling"] = {
      p.n,     p.beam_width, p.max_tokens,         p.min_tokens,        p.temperature,      p.top_p,
      p.top_k, p.min_p,      p.repetition_penalty, p.frequency_penalty, p.presence_penalty, p.ignore_eos};
  json["stop"] = p.stop;
  json["stop_token_ids"] = p.stop_token_ids;
  json["seed"] = p.seed.value_or(0);
  json["logprobs"] = p.logprobs ? nlohmann::ordered_json(*p.logprobs) : nlohmann::ordered_json();
  json["sample_index"] = s.sample_index;
  json["cache_salt"] = s.cache_salt;
  json["logits_hash"] = s.logits_hash;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n" + content;
}

class BatchRun {
 public:
  BatchRun(const RunFlags& flags, std::unique_ptr<Engine> engine, BatchFile file, uint32_t in_flight)
      : flags_(flags), file_(std::move(file)), most_in_flight_(in_flight), engine_(std::move(engine)) {}

  Result<int> run(const std::vector<InputLine>& lines) {
    total_ = lines.size();
    if (!file_.answers().empty()) {
      note("resuming: " + std::to_string(file_.answers().size()) + " of " + std::to_string(total_) + " lines are done");
    }
    RETURN_IF_ERROR(prepare(lines));
    InterruptScope scope;
    RETURN_IF_ERROR(work());
    if (interrupted() && file_.answers().size() < total_) {
      note("stopped with " + std::to_string(file_.answers().size()) + " of " + std::to_string(total_) +
           " lines done; " +
           (file_.keeps() ? "run the same command again to go on"
                          : "their answers are lost, give -o FILE to keep them and go on another time"));
      return kExitInterrupted;
    }
    RETURN_IF_ERROR(file_.finish());
    return report(lines);
  }

 private:
  Status prepare(const std::vector<InputLine>& lines) {
    const Request defaults = make_request(flags_.sampling, 0.0f, {});
    for (size_t i = 0; i < lines.size(); ++i) {
      if (file_.answers().contains(i)) continue;
      Job job{i, lines[i], {}};
      Status status = [&]() -> Status {
        ASSIGN_OR_RETURN(job.line, parse_batch_line(job.source.text, defaults));
        ASSIGN_OR_RETURN(job.line.request.prompt, encode(job.line));
        return {};
      }();
      if (status) {
        jobs_.push_back(std::move(job));
      } else {
        RETURN_IF_ERROR(add_error(job, status.error()));
      }
    }
    // Prompts that begin alike run one after the other, while the blocks they share are there.
    std::ranges::stable_sort(
        jobs_, {}, [](const Job& job) -> const auto& { return job.line.request.prompt; });
    return {};
  }

  Result<std::vector<TokenId>> encode(const BatchLine& line) const {
    if (!line.ids.empty()) return line.ids;
    if (!line.messages.empty()) return encode_chat(*engine_, line.messages);
    const bool raw = flags_.raw || line.dialect == BatchDialect::openai_completion;
    return encode_prompt(*engine_, raw ? "" : flags_.system, *line.prompt, raw);
  }

  Status work() {
    Progress progress("answering");
    bool cancelled = false;
    while (true) {
      while (!cancelled && next_ < jobs_.size() && running_.size() < most_in_flight_)
        RETURN_IF_ERROR(submit(jobs_[next_++]));
      if (running_.empty()) break;
      if (!engine_->step()) RETURN_IF_ERROR(engine_->health());
      RETURN_IF_ERROR(written_);
      progress.show(file_.answers().size(), total_,
                    std::to_string(file_.answers().size()) + " of " + std::to_string(total_));
      if (interrupted() && !cancelled) {
        cancelled = true;
        for (const auto& [id, job] : running_) engine_->cancel(id);
      }
    }
    return engine_->health();
  }

  // A refusal answers its line; a result does so when it comes.
  Status submit(const Job& job) {
    Request request = job.line.request;
    request.on_finish = [this, &job](const RequestResult& result) {
      running_.erase(result.request);
      if (written_) written_ = take(job, result);
    };
    const Result<RequestId> id = engine_->submit(std::move(request));
    if (!id) return add_error(job, id.error());
    running_[*id] = &job;
    return {};
  }

  Status take(const Job& job, const RequestResult& result) {
    if (result.error) return add_error(job, *result.error);
    // Cancelled ones are computed by the next run.
    const auto is_cut = [](const SampleResult& sample) { return sample.finish == FinishReason::cancelled; };
    if (std::ranges::any_of(result.samples, is_cut)) return {};
    generated_ += result.completion_tokens;
    cached_ += result.cached_tokens;
    prompt_ += result.prompt_tokens;
    return file_.add(job.index, answer_line(job.line, result, *engine_, std::time(nullptr)));
  }

  Status add_error(const Job& job, Error error) {
    error.message = "line " + std::to_string(job.source.number) + ": " + error.message;
    return file_.add(job.index, error_line(job.source.text, error));
  }

  // Lines answered with an error by an earlier run count too.
  Result<int> report(const std::vector<InputLine>& lines) const {
    constexpr size_t kMostNamed = 8;
    size_t failed = 0;
    std::string numbers;
    for (const auto& [index, answer] : file_.answers()) {
      const auto json = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
      if (!json.contains("error") || json["error"].is_null()) continue;
      if (failed < kMostNamed) numbers += (failed == 0 ? "" : ", ") + std::to_string(lines[index].number);
      if (failed == kMostNamed) numbers += ", ...";
      ++failed;
    }
    if (!flags_.model.quiet) {
      const EngineStats stats = engine_->stats();
      note(std::to_string(total_) + " prompts: " + std::to_string(prompt_) + " prompt tokens (" +
           std::to_string(cached_) + " cached), " + std::to_string(generated_) + " generated, " +
           std::to_string(stats.preemptions) + " preemptions, waste " +
           std::to_string(100.0 * stats.waste_mean).substr(0, 4) + " %");
    }
    if (failed == 0) return 0;
    return fail(ErrorCode::invalid_argument, std::to_string(failed) + " of " + std::to_string(total_) +
                                                 " lines failed (" + numbers +
                                                 "); each has an \"error\" in the output that says why");
  }

  const RunFlags& flags_;
  BatchFile file_;
  const size_t most_in_flight_;
  size_t total_ = 0, next_ = 0;
  std::vector<Job> jobs_;
  std::map<RequestId, const Job*> running_;
  Status written_;
  uint64_t prompt_ = 0, cached_ = 0, generated_ = 0;
  std::unique_ptr<Engine> engine_;  // destroyed first: requests still in flight report to this object
};

}  // namespace

Result<int> run_batch(const RunFlags& flags) {
  ASSIGN_OR_RETURN(const std::string content, read_input(flags.prompts));
  const std::vector<InputLine> lines = split_lines(content);
  if (lines.empty())
    return fail(ErrorCode::invalid_argument, flags.prompts + " has no lines; give one JSON object a line");
  ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags.model, EngineOptions().max_num_seqs));
  options.scheduling_policy = SchedulingPolicy::priority;  // lines may say which of them matter more
  ASSIGN_OR_RETURN(const std::string output, output_path(flags.output, flags.prompts));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, load_engine(flags.model, options));
  std::error_code unknown;
  const bool replaces = output != "-" && std::filesystem::exists(output, unknown);
  ASSIGN_OR_RETURN(BatchFile file, BatchFile::open(output, identity_of(flags, *engine, content), lines.size()));
  if (replaces && file.answers().empty() && !flags.model.quiet) {
    note(output + " is there: all " + std::to_string(lines.size()) +
         " lines are computed anew and replace it at the end; only a run that was stopped is resumed");
  }
  return BatchRun(flags, std::move(engine), std::move(file), 2 * options.max_num_seqs).run(lines);
}

}  // namespace kvarto
