// Work beside the queue: the caller's own sequences through the model, for scoring and for one's own loops.
#include <algorithm>

#include "engine/engine_impl.h"

namespace kvarto {

// Ids from outside, and room for them behind what is there already.
Status Engine::Impl::check_ids(std::span<const TokenId> ids, uint64_t length) const {
  if (ids.empty()) return fail(ErrorCode::invalid_argument, "there are no ids to compute; give at least 1");
  if (length + ids.size() > limits.max_model_len) {
    return fail(ErrorCode::invalid_argument, std::to_string(length + ids.size()) + " ids exceed max_model_len " +
                                                 std::to_string(limits.max_model_len) + "; give fewer at once");
  }
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocabulary()) {
      return fail(ErrorCode::invalid_argument, "id " + std::to_string(id) + " is outside the vocabulary of " +
                                                   std::to_string(vocabulary()) + " tokens");
    }
  }
  return {};
}

// Computes `ids` (at most one step's worth) after `sequence`; the rows of `rows_wanted` end up in `logits`.
Status Engine::Impl::compute_ids(KvSequence& sequence, std::span<const TokenId> ids,
                                 std::span<const uint32_t> rows_wanted) {
  const auto count = static_cast<uint32_t>(ids.size());
  const uint64_t first = sequence.length();
  RETURN_IF_ERROR(cache->reserve(sequence, count));
  const BatchSequence rows{0, count, first, cache->views(sequence)};
  auto* const final_rows = reinterpret_cast<float*>(hidden.data());
  parts.model->forward({.tokens = ids, .sequences = {&rows, 1}, .logit_rows = rows_wanted, .trace = {}},
                       parts.workspace, final_rows);
  parts.model->logits(final_rows, rows_wanted.size(), reinterpret_cast<float*>(logits.data()));
  cache->commit(sequence, ids);
  return {};
}

Status Engine::Impl::score(std::span<const TokenId> ids,
                           const std::function<void(size_t, std::span<const float>)>& visit) {
  RETURN_IF_ERROR(check_ids(ids, 0));
  OpenOptions cold;
  cold.read_cache = false;
  KvSequence sequence = cache->open(ids, cold).sequence;
  return forward(sequence, ids, ids.size(), visit);
}

Result<std::vector<float>> Engine::Impl::forward(KvSequence& sequence, std::span<const TokenId> ids) {
  std::vector<float> last;
  RETURN_IF_ERROR(forward(sequence, ids, 1,
                          [&](size_t, std::span<const float> logits) { last.assign(logits.begin(), logits.end()); }));
  return last;
}

// All of `ids` or, after an error, none of them: then the sequence is cut back to where it was.
Status Engine::Impl::forward(KvSequence& sequence, std::span<const TokenId> ids, size_t rows,
                             const std::function<void(size_t, std::span<const float>)>& visit) {
  if (!cache->owns(sequence)) {
    return fail(ErrorCode::invalid_argument,
                "the sequence was not opened in this engine's cache, or the cache was rebuilt since; open it again");
  }
  RETURN_IF_ERROR(check_ids(ids, sequence.length()));
  if (rows < 1 || rows > ids.size()) {
    return fail(ErrorCode::invalid_argument, "logits of " + std::to_string(rows) + " tokens were asked for, and " +
                                                 std::to_string(ids.size()) +
                                                 " tokens are given; ask for 1 to that many");
  }
  abandon_pass();
  std::vector<uint32_t>& logit_rows = step.logit_rows;
  const uint64_t old_length = sequence.length();
  const size_t step_tokens = parts.options.max_num_batched_tokens, silent = ids.size() - rows;
  for (size_t first = 0, end = 0; first < ids.size(); first = end) {
    const size_t wanted = std::max(first, silent);
    end = std::min({ids.size(), first + step_tokens, wanted + kLogitRows});
    logit_rows.clear();
    for (size_t i = wanted; i < end; ++i) logit_rows.push_back(static_cast<uint32_t>(i - first));
    if (const Status computed = compute_ids(sequence, ids.subspan(first, end - first), logit_rows); !computed) {
      if (first > 0) cache->trim(sequence, old_length);
      return tl::unexpected(computed.error());
    }
    const auto* out = reinterpret_cast<const float*>(logits.data());
    for (size_t i = wanted; i < end; ++i, out += vocabulary()) visit(i - silent, {out, vocabulary()});
  }
  return {};
}

}  // namespace kvarto
