#include "eval/engine_subject.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "base/float_mode.h"
#include "base/vmath.h"
#include "engine/load.h"
#include "eval/planted_fault.h"
#include "format/printable.h"

namespace kvarto {
namespace {

// Tokens between two moments at which a likelihood may be cancelled.
constexpr size_t kPartTokens = 256;

tl::unexpected<Error> of_task(const Task& task, const Error& error) {
  return fail(error.code, "task " + kvarto::quoted(task.id) + ": " + error.message);
}

// Blocks that a fault has touched are not those of another, nor of none.
std::string name_of(const PlantedFault& fault) {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << " fault: seed=" << fault.seed;
  if (fault.key_noise_db) text << " noise=" << *fault.key_noise_db;
  if (fault.hidden_share > 0) text << " hide=" << fault.hidden_share;
  return text.str();
}

// Requests on their way, each of a task. Those that are left when this goes are cancelled.
class Requests {
 public:
  struct Ended {
    size_t task;
    std::string text;
    std::optional<Error> error;
  };

  explicit Requests(Engine& engine) : engine_(engine) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() {
    if (left() == 0) return;
    for (const RequestId id : ids_) engine_.cancel(id);
    while (left() > 0 && engine_.step()) {
    }
  }

  Status add(size_t task, Request request) {
    request.on_finish = [state = state_, task](const RequestResult& result) {
      --state->left;
      state->ended.push_back({task, result.samples.front().text, result.error});
    };
    ASSIGN_OR_RETURN(const RequestId id, engine_.submit(std::move(request)));
    ids_.push_back(id);
    ++state_->left;
    return {};
  }
  size_t left() const { return state_->left; }
  // Those that ended since the last call.
  std::vector<Ended> take() { return std::exchange(state_->ended, {}); }

 private:
  struct State {
    std::vector<Ended> ended;
    size_t left = 0;
  };
  Engine& engine_;
  std::vector<RequestId> ids_;
  std::shared_ptr<State> state_ = std::make_shared<State>();  // shared with requests, which an engine that broke keeps
};

class EngineSubject : public Subject {
 public:
  EngineSubject(Engine& engine, SubjectOptions options) : engine_(engine), options_(std::move(options)) {}

  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor) override {
    if (task.answer.empty() || (floor && task.floor_prompt.empty())) return std::optional<Likelihood>();
    Result<std::vector<TokenId>> prompt = floor ? encode_prompt(task.floor_prompt) : prompt_of(task);
    if (!prompt) return of_task(task, prompt.error());
    const Result<std::vector<TokenId>> answer = engine_.encode(task.answer, true, false);
    if (!answer) return of_task(task, answer.error());
    const Result<Likelihood> found = score(*std::move(prompt), *answer);
    if (!found) return of_task(task, found.error());
    return std::optional<Likelihood>(*found);
  }

  Status generate(std::span<const Task* const> tasks,
                  const std::function<Status(size_t index, Result<std::string> text)>& done) override {
    Requests requests(engine_);
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Status added = submit(*tasks[i], i, requests);
      if (!added) RETURN_IF_ERROR(done(i, of_task(*tasks[i], added.error())));
    }
    const uint64_t bugs = engine_.stats().internal_errors;
    for (bool more = true; requests.left() > 0 && more;) {
      more = engine_.step();
      for (Requests::Ended& ended : requests.take()) {
        // Of one request alone, this is what comes of logits that are no numbers.
        const bool overflowed =
            ended.error && ended.error->code == ErrorCode::internal && engine_.stats().internal_errors == bugs;
        const bool failed = ended.error && !(overflowed && options_.may_overflow);
        Result<std::string> text = std::move(ended.text);
        if (failed) text = of_task(*tasks[ended.task], *ended.error);
        RETURN_IF_ERROR(done(ended.task, std::move(text)));
      }
    }
    if (requests.left() == 0) return {};
    RETURN_IF_ERROR(engine_.health());
    return fail(ErrorCode::internal, "the engine has nothing to do and tasks are not finished; this is a bug of ours");
  }

 private:
  Result<std::vector<TokenId>> encode_prompt(std::string_view text) const {
    ASSIGN_OR_RETURN(std::vector<TokenId> ids, engine_.encode(text));
    if (ids.empty()) return fail(ErrorCode::invalid_argument, "its prompt has no tokens; give it a text");
    return ids;
  }

  Result<std::vector<TokenId>> prompt_of(const Task& task) const {
    if (task.messages.empty()) return encode_prompt(task.prompt);
    ASSIGN_OR_RETURN(const std::string text, engine_.render_chat(task.messages));
    return encode_prompt(text);
  }

  // The prompt's last token is computed in any case: the answer's first one follows from it.
  Result<Likelihood> score(std::vector<TokenId> ids, std::span<const TokenId> answer) const {
    const size_t prompt = ids.size();
    ids.insert(ids.end(), answer.begin(), answer.end());
    const uint32_t longest = engine_.info().max_model_len;
    if (ids.size() > longest) {
      return fail(ErrorCode::invalid_argument, "a prompt of " + std::to_string(prompt) + " tokens with an answer of " +
                                                   std::to_string(answer.size()) + " exceeds max_model_len " +
                                                   std::to_string(longest) +
                                                   "; give shorter tasks, or a longer --context");
    }
    RETURN_IF_ERROR(engine_.health());
    const std::span<const TokenId> known = std::span<const TokenId>(ids).first(ids.size() - 1);
    OpenOptions options;
    options.max_cached_tokens = prompt - 1;
    KvSequence sequence = engine_.cache().open(known, options).sequence;
    Likelihood found{.nll = 0.0, .tokens = static_cast<uint32_t>(answer.size()), .greedy = true};
    const auto add = [&](size_t index, std::span<const float> logits) {
      const auto token = static_cast<size_t>(answer[index]);
      found.nll += log_sum_exp(logits) - double{logits[token]};
      if (std::ranges::max_element(logits) - logits.begin() != answer[index]) found.greedy = false;
    };
    RETURN_IF_ERROR(forward(sequence, known.subspan(sequence.length()), answer.size(), add));
    if (std::isfinite(found.nll)) return found;
    if (!options_.may_overflow) {
      return fail(ErrorCode::internal,
                  "the answer's likelihood is no number; the model's weights or its KV overflow, try kv=f32");
    }
    found.nll = std::numeric_limits<double>::infinity();
    found.greedy = false;
    return found;
  }

  // Visits the logits behind each of the last `rows` tokens, in parts between which it may be cancelled.
  Status forward(KvSequence& sequence, std::span<const TokenId> tokens, size_t rows,
                 const std::function<void(size_t index, std::span<const float> logits)>& visit) const {
    for (size_t first = 0, visited = 0; first < tokens.size();) {
      if (options_.cancelled && options_.cancelled()) return fail(ErrorCode::cancelled, "ended on request");
      const size_t silent = tokens.size() - rows, left = (first < silent ? silent : tokens.size()) - first;
      const std::span<const TokenId> part = tokens.subspan(first, std::min(kPartTokens, left));
      if (first < silent) {
        RETURN_IF_ERROR(engine_.forward(sequence, part, 1, [](size_t, std::span<const float>) {}));
      } else {
        RETURN_IF_ERROR(engine_.forward(sequence, part, part.size(), [&](size_t index, std::span<const float> logits) {
          visit(visited + index, logits);
        }));
        visited += part.size();
      }
      first += part.size();
    }
    return {};
  }

  Status submit(const Task& task, size_t index, Requests& requests) const {
    Request request;
    ASSIGN_OR_RETURN(request.prompt, prompt_of(task));
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = task.max_tokens;
    request.sampling.stop = task.stop;
    return requests.add(index, std::move(request));
  }

  Engine& engine_;
  const SubjectOptions options_;
};

}  // namespace

Result<std::unique_ptr<Engine>> load_setting(const std::shared_ptr<const GgufFile>& file, EngineOptions options,
                                             const Setting& setting) {
  const FloatMode plain;
  if (setting.k_dtype) options.k_dtype = setting.k_dtype;
  if (setting.v_dtype) options.v_dtype = setting.v_dtype;
  const auto wrap = [&](std::shared_ptr<Backend> backend, uint64_t max_model_len) {
    return plant(std::move(backend), setting.fault, max_model_len);
  };
  ASSIGN_OR_RETURN(EngineParts parts, load_parts(file, options, best_target(), wrap));
  if (setting.fault.any()) parts.name_space += name_of(setting.fault);
  return Engine::assemble(std::move(parts));
}

std::unique_ptr<Subject> engine_subject(Engine& engine, SubjectOptions options) {
  return std::make_unique<EngineSubject>(engine, std::move(options));
}

}  // namespace kvarto
