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
  abandon_pass();
  std::vector<uint32_t>& logit_rows = step.logit_rows;
  OpenOptions cold;
  cold.read_cache = false;
  KvSequence sequence = cache->open(ids, cold).sequence;
  const size_t chunk = std::min(kLogitRows, parts.options.max_num_batched_tokens);
  for (size_t first = 0; first < ids.size(); first += chunk) {
    const std::span<const TokenId> part = ids.subspan(first, std::min(chunk, ids.size() - first));
    logit_rows.clear();
    for (uint32_t row = 0; row < part.size(); ++row) logit_rows.push_back(row);
    RETURN_IF_ERROR(compute_ids(sequence, part, logit_rows));
    const auto* const out = reinterpret_cast<const float*>(logits.data());
    for (size_t row = 0; row < part.size(); ++row) {
      visit(first + row, std::span<const float>(out + row * vocabulary(), vocabulary()));
    }
  }
  return {};
}

// All of `ids` or, after an error, none of them: then the sequence is cut back to where it was.
Result<std::vector<float>> Engine::Impl::forward(KvSequence& sequence, std::span<const TokenId> ids) {
  if (!cache->owns(sequence)) {
    return fail(ErrorCode::invalid_argument,
                "the sequence was not opened in this engine's cache, or the cache was rebuilt since; open it again");
  }
  RETURN_IF_ERROR(check_ids(ids, sequence.length()));
  abandon_pass();
  std::vector<uint32_t>& logit_rows = step.logit_rows;
  const uint64_t old_length = sequence.length();
  const size_t chunk = parts.options.max_num_batched_tokens;
  for (size_t first = 0; first < ids.size(); first += chunk) {
    const std::span<const TokenId> part = ids.subspan(first, std::min(chunk, ids.size() - first));
    logit_rows.clear();
    if (first + part.size() == ids.size()) logit_rows.push_back(static_cast<uint32_t>(part.size()) - 1);
    if (const Status computed = compute_ids(sequence, part, logit_rows); !computed) {
      if (first > 0) cache->trim(sequence, old_length);
      return tl::unexpected(computed.error());
    }
  }
  const auto* const out = reinterpret_cast<const float*>(logits.data());
  return std::vector<float>(out, out + vocabulary());
}

}  // namespace kvarto
