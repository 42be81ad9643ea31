#include <exception>
#include <type_traits>

#include "base/check.h"
#include "base/float_mode.h"
#include "engine/engine_impl.h"

namespace kvarto {
namespace {

// Work outside of a step. What throws is a bug of ours, and costs what it would cost in a step.
template <typename Impl, typename Work>
std::invoke_result_t<Work> guarded(Impl& engine, const Work& work) {
  const FloatMode plain;
  RETURN_IF_ERROR(engine.inbox.health());
  try {
    return work();
  } catch (const std::exception& bug) {
    engine.poison(bug.what());
    engine.sweep();
    return fail(ErrorCode::internal, bug.what());
  }
}

}  // namespace

Engine::Engine() = default;

Engine::~Engine() {
  if (impl_ == nullptr) return;
  impl_->receive();
  for (auto& [id, request] : impl_->requests) impl_->end_request(*request, FinishReason::cancelled, std::nullopt);
  impl_->sweep();
}

// Plan, run, commit. Text follows from logits, and what ended is reported last.
bool Engine::step() {
  const FloatMode plain;
  Impl& engine = *impl_;
  if (!engine.inbox.health()) return false;
  engine.receive();
  bool computed = false;
  try {
    engine.admit();
    engine.plan_step();
    if (!engine.step.entries.empty() || engine.pass.under_way()) {
      engine.compute();
      engine.commit();
      engine.choose();
      computed = true;
    }
  } catch (const std::exception& bug) {
    engine.poison(bug.what());
  }
  engine.sweep();
  engine.publish(computed);
  return engine.busy();
}

void EngineParts::poison(Engine& engine, const std::string& what) {
  const FloatMode plain;
  Engine::Impl& impl = *engine.impl_;
  if (!impl.inbox.health()) return;
  // What a step left that was cut short: told by half.
  impl.events.clear();
  impl.admitted.clear();
  impl.preempted.clear();
  impl.resumed.clear();
  impl.poison(what);
  impl.sweep();
  impl.publish(false);
}

bool Engine::idle() const { return !impl_->busy(); }
Status Engine::health() const { return impl_->inbox.health(); }
const EngineInfo& Engine::info() const { return impl_->parts.info; }
KvCache& Engine::cache() {
  CHECK(impl_->cache != nullptr, "the engine stopped because its KV cache could not be made again; see health()");
  return *impl_->cache;
}
void Engine::cancel(RequestId id) { impl_->inbox.cancel(id); }

Result<RequestId> Engine::submit(Request request) {
  RETURN_IF_ERROR(validate(request, impl_->limits));
  auto state = std::make_unique<RequestState>();
  state->request = std::move(request);
  const SamplingParams& params = state->params();
  state->seed = params.seed.value_or(impl_->parts.options.seed);
  state->submitted_us = impl_->parts.clock->now_us();

  OutputRules& rules = state->rules;
  rules.tokenizer = impl_->parts.tokenizer.get();
  rules.params = &params;
  rules.prompt_tokens = state->prompt_tokens();
  rules.max_model_len = impl_->limits.max_model_len;
  rules.stop_ids = params.stop_token_ids;
  if (rules.tokenizer != nullptr && !params.ignore_eos) {
    const std::vector<TokenId>& ids = rules.tokenizer->stop_ids();
    rules.stop_ids.insert(rules.stop_ids.end(), ids.begin(), ids.end());
  }
  std::ranges::sort(rules.stop_ids);

  if (impl_->parts.options.enable_prefix_caching) {
    const std::span<const TokenId> prompt = state->request.prompt;
    const std::string& salt = state->request.cache_salt;
    const uint32_t block = impl_->block_tokens();
    BlockHash parent = root_hash();
    for (size_t first = 0; first + block <= prompt.size(); first += block) {
      const bool salted = first == 0 && !salt.empty();
      parent = chain_hash(parent, prompt.subspan(first, block),
                          salted ? std::optional<std::string_view>(salt) : std::nullopt);
      state->prompt_hashes.push_back(parent);
    }
  }
  return impl_->inbox.add(std::move(state));
}

Result<RequestResult> Engine::generate(Request request) {
  std::optional<RequestResult> result;
  const auto tell = std::move(request.on_finish);
  request.on_finish = [&](const RequestResult& finished) {
    result = finished;
    if (tell) tell(finished);
  };
  RETURN_IF_ERROR(submit(std::move(request)));
  while (!result && step()) {
  }
  if (!result) {
    RETURN_IF_ERROR(health());
    return fail(ErrorCode::internal,
                "the engine has nothing to do and the request is not finished; this is a bug of ours");
  }
  return *std::move(result);
}

Status Engine::score(std::span<const TokenId> ids,
                     const std::function<void(size_t position, std::span<const float> logits)>& visit) {
  return guarded(*impl_, [&] { return impl_->score(ids, visit); });
}

Result<std::vector<float>> Engine::forward(KvSequence& sequence, std::span<const TokenId> tokens) {
  return guarded(*impl_, [&] { return impl_->forward(sequence, tokens); });
}

Status Engine::forward(KvSequence& sequence, std::span<const TokenId> tokens, size_t rows,
                       const std::function<void(size_t index, std::span<const float> logits)>& visit) {
  return guarded(*impl_, [&] { return impl_->forward(sequence, tokens, rows, visit); });
}

bool Engine::reset_prefix_cache() { return impl_->cache != nullptr && impl_->cache->clear(); }

std::vector<MemoryUse> Engine::memory() const {
  std::vector<MemoryUse> all;
  const Ledger* ledger = impl_->parts.ledger.get();
  for (size_t i = 0; ledger != nullptr && i < static_cast<size_t>(MemoryTag::count); ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    const Ledger::Peak peak = ledger->peak(tag);
    all.push_back({memory_tag_name(tag), ledger->used(tag), peak.bytes, peak.step});
  }
  return all;
}

// --- making

Result<std::unique_ptr<Engine>> Engine::assemble(EngineParts parts) {
  const FloatMode plain;
  RETURN_IF_ERROR(validate(parts.options));
  std::unique_ptr<Engine> engine(new Engine());
  engine->impl_ = std::make_unique<Impl>(std::move(parts));
  Impl& impl = *engine->impl_;
  RETURN_IF_ERROR(impl.make_buffers());
  RETURN_IF_ERROR(impl.make_cache());

  const ModelConfig& config = impl.parts.model->config();
  const uint32_t asked = impl.parts.options.max_model_len;
  const uint64_t longest = impl.cache->longest_sequence(impl.parts.options.max_num_batched_tokens);
  if (asked > longest) {
    return fail(ErrorCode::out_of_memory, "max_model_len " + std::to_string(asked) + " does not fit a KV cache of " +
                                              std::to_string(impl.parts.kv_bytes) +
                                              " bytes; the largest length that fits is " + std::to_string(longest));
  }
  const uint64_t length = asked > 0 ? asked : std::min<uint64_t>(config.context_length, longest);
  EngineInfo& info = impl.parts.info;
  if (asked == 0 && length < config.context_length) {
    info.max_model_len_reason = "a KV cache of " + std::to_string(impl.parts.kv_bytes) + " bytes holds no longer one";
  }
  impl.limits = {.vocabulary = config.vocabulary,
                 .max_model_len = static_cast<uint32_t>(length),
                 .max_num_seqs = impl.parts.options.max_num_seqs,
                 .longest_sequence = longest,
                 .short_of_memory = !info.max_model_len_reason.empty(),
                 .has_text = impl.parts.tokenizer != nullptr,
                 .priorities = impl.parts.options.scheduling_policy == SchedulingPolicy::priority};
  info.architecture = config.architecture;
  info.model_name = config.name;
  info.vocabulary = config.vocabulary;
  info.context_length = config.context_length;
  info.max_model_len = impl.limits.max_model_len;
  info.pass_bytes = impl.parts.model->pass_bytes();
  info.kv_arena_bytes = impl.parts.kv_bytes;
  info.kv_bytes_per_token = impl.parts.layout.bytes_per_token();
  const KvLayoutOptions& kv = impl.parts.layout.options();
  info.kv_dtype = kv_dtype_name(kv.k_dtype);
  if (kv.v_dtype != kv.k_dtype) info.kv_dtype += "/" + std::string(kv_dtype_name(kv.v_dtype));
  impl.snapshot = impl.stats();
  return engine;
}

Engine::Impl::Impl(EngineParts engine_parts)
    : parts(std::move(engine_parts)),
      scheduler({.max_num_batched_tokens = parts.options.max_num_batched_tokens,
                 .max_step_us = parts.options.max_step_ms * 1000.0}),
      chat(parts.chat_template, parts.tokenizer) {
  if (parts.clock == nullptr) parts.clock = std::make_shared<SteadyClock>();
  if (parts.cost == nullptr) parts.cost = std::make_shared<OnlineCostModel>();
}

Engine::Impl::~Impl() = default;

Status Engine::Impl::make_cache() {
  cache.reset();  // its memory first: the ledger has room for one
  ASSIGN_OR_RETURN(cache, KvCache::create(parts.layout, parts.memory(),
                                          {.bytes = parts.kv_bytes,
                                           .prefix_caching = parts.options.enable_prefix_caching,
                                           .name_space = parts.name_space,
                                           .max_step_tokens = parts.options.max_num_batched_tokens,
                                           .record_events = parts.options.record_kv_events,
                                           .event_bytes = parts.options.kv_event_bytes,
                                           .clock_us = [clock = parts.clock] { return clock->now_us(); },
                                           .on_life = parts.options.on_kv_life,
                                           .life_sample = parts.options.kv_life_sample}));
  return {};
}

Status Engine::Impl::make_buffers() {
  const size_t rows = most_logit_rows(parts.options);
  const size_t width = parts.model->config().width;
  ASSIGN_OR_RETURN(hidden, Slab::allocate(rows * width * sizeof(float), MemoryTag::activations, parts.ledger));
  ASSIGN_OR_RETURN(logits,
                   Slab::allocate(size_t{kLogitRows} * vocabulary() * sizeof(float), MemoryTag::logits, parts.ledger));
  return {};
}

bool Engine::Impl::busy() const { return !requests.empty() || !inbox.empty(); }

// Takes what other threads sent.
void Engine::Impl::receive() {
  inbox.take(arrived, cancelled, waiting.size());
  for (std::unique_ptr<RequestState>& request : arrived) {
    RequestState& r = *request;
    r.result.request = r.id;
    r.result.prompt_tokens = r.prompt_tokens();
    r.unborn = (r.is_beam() ? r.params().beam_width : r.params().n) - 1;
    r.samples.push_back(std::make_unique<Sample>(r, 0, r.request.prompt));
    totals.prompt_tokens += r.prompt_tokens();
    queued_tokens += r.prompt_tokens();
    if (r.request.prompt_logprobs) {
      r.result.prompt_logprobs.reserve(r.prompt_tokens());
      r.result.prompt_logprobs.push_back({.token = r.request.prompt.front()});
    }
    requests.emplace(r.id, std::move(request));
    enqueue(*r.samples.front());
  }
  for (const RequestId id : cancelled) {
    const auto found = requests.find(id);
    if (found != requests.end()) end_request(*found->second, FinishReason::cancelled, std::nullopt);
  }
  sweep();  // what is cancelled holds no slot in the step to come
}

}  // namespace kvarto
