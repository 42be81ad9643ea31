#include "cli/bench_work.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/hash.h"

namespace kvarto {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Request greedy(std::vector<TokenId> prompt, uint32_t max_tokens, bool hash_logits = false) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.hash_logits = hash_logits;
  return request;
}

// A group of requests that run together; those not finished when it goes are cancelled, for they report to it.
class Group {
 public:
  explicit Group(Engine& engine) : engine_(engine) {}
  Group(const Group&) = delete;
  ~Group() {
    for (const RequestId id : ids_) engine_.cancel(id);
    while (finished_ < ids_.size() && engine_.step()) {
    }
  }

  Status add(Request request) {
    request.on_token = [this](const TokenEvent& event) {
      ++tokens_;
      first_.insert(event.request);
    };
    request.on_finish = [this](const RequestResult& result) {
      ++finished_;
      cached_ += result.cached_tokens;
      last_tokens_ = result.samples.front().tokens;
      hashes_[result.request] = result.samples.front().logits_sha256;
      if (result.error) error_ = *result.error;
    };
    prompt_ += request.prompt.size();
    ASSIGN_OR_RETURN(const RequestId id, engine_.submit(std::move(request)));
    ids_.push_back(id);
    return {};
  }
  // Steps until `done` or nothing is left.
  Status step_until(const std::function<bool()>& done) {
    while (!done() && finished_ < ids_.size()) {
      if (!engine_.step() && finished_ < ids_.size()) {
        RETURN_IF_ERROR(engine_.health());
        return fail(ErrorCode::internal, "the engine stopped with requests unfinished; this is a bug of ours");
      }
    }
    if (error_) return tl::unexpected<Error>(*error_);
    return {};
  }
  Status finish() {
    return step_until([] { return false; });
  }
  bool all_began() const { return first_.size() == ids_.size(); }
  uint64_t tokens() const { return tokens_; }
  uint64_t computed_prompt() const { return prompt_ - cached_; }
  const std::vector<TokenId>& last_tokens() const { return last_tokens_; }
  // In the order of add().
  std::vector<std::string> hashes() const {
    std::vector<std::string> list;
    for (const auto& [id, hash] : hashes_) list.push_back(hash);
    return list;
  }

 private:
  Engine& engine_;
  uint64_t tokens_ = 0, prompt_ = 0, cached_ = 0;
  size_t finished_ = 0;
  std::vector<RequestId> ids_;
  std::set<RequestId> first_;
  std::vector<TokenId> last_tokens_;
  std::map<RequestId, std::string> hashes_;  // ids ascend
  std::optional<Error> error_;
};

std::string one_hash(const std::vector<std::string>& hashes) {
  if (hashes.size() == 1) return hashes.front();
  Sha256 all;
  for (const std::string& hash : hashes) all.update(hash);
  return to_hex(all.finish());
}

std::vector<TokenId> with_own_tokens(const Engine& engine, const std::vector<TokenId>& shared, size_t count,
                                     std::mt19937_64& random) {
  std::vector<TokenId> ids = shared;
  const std::vector<TokenId> own = random_ids(random, engine.info().vocabulary, count);
  ids.insert(ids.end(), own.begin(), own.end());
  return ids;
}

}  // namespace

std::vector<TokenId> random_ids(std::mt19937_64& random, uint32_t vocabulary, size_t count) {
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % vocabulary);
  return ids;
}

std::vector<TokenId> depth_ids(const Engine& engine, uint32_t depth) {
  std::mt19937_64 random(depth);
  return random_ids(random, engine.info().vocabulary, depth);
}

Status warm_up(Engine& engine, const std::vector<TokenId>& shared) {
  if (shared.empty()) return {};
  Group group(engine);
  RETURN_IF_ERROR(group.add(greedy(shared, 1)));
  return group.finish();
}

Result<WorkTime> time_prompt(Engine& engine, const std::vector<TokenId>& shared, uint32_t batch, uint32_t count,
                             std::mt19937_64& random, bool hash) {
  Group group(engine);
  for (uint32_t i = 0; i < batch; ++i) {
    RETURN_IF_ERROR(group.add(greedy(with_own_tokens(engine, shared, count, random), 1, hash)));
  }
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(group.finish());
  const double seconds = seconds_since(start);
  return WorkTime{seconds, group.computed_prompt(), hash ? one_hash(group.hashes()) : ""};
}

Result<WorkTime> time_generation(Engine& engine, const std::vector<TokenId>& shared, uint32_t batch, uint32_t count,
                                 std::mt19937_64& random, bool hash) {
  Group group(engine);
  for (uint32_t i = 0; i < batch; ++i) {
    RETURN_IF_ERROR(group.add(greedy(with_own_tokens(engine, shared, 1, random), count + 1, hash)));
  }
  RETURN_IF_ERROR(group.step_until([&] { return group.all_began(); }));
  const uint64_t before = group.tokens();
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(group.finish());
  const double seconds = seconds_since(start);
  return WorkTime{seconds, group.tokens() - before, hash ? one_hash(group.hashes()) : ""};
}

Result<WorkTime> time_recompute(Engine& engine, const std::vector<TokenId>& shared, uint32_t batch, uint32_t count,
                                std::mt19937_64& random, bool hash) {
  std::vector<std::vector<TokenId>> texts;
  for (uint32_t i = 0; i < batch; ++i) texts.push_back(with_own_tokens(engine, shared, 1, random));
  std::vector<std::string> hashes;
  const Clock::time_point start = Clock::now();
  for (uint32_t token = 0; token < count; ++token) {
    std::vector<std::unique_ptr<Group>> groups;
    for (const std::vector<TokenId>& text : texts) {
      groups.push_back(std::make_unique<Group>(engine));
      RETURN_IF_ERROR(groups.back()->add(greedy(text, 1, hash)));
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      RETURN_IF_ERROR(groups[i]->finish());
      texts[i].push_back(groups[i]->last_tokens().front());
      if (hash) hashes.push_back(groups[i]->hashes().front());
    }
  }
  const double seconds = seconds_since(start);
  return WorkTime{seconds, uint64_t{batch} * count, hash ? one_hash(hashes) : ""};
}

}  // namespace kvarto
