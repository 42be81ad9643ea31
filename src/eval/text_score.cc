#include "eval/text_score.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "base/file.h"
#include "base/hash.h"
#include "base/vmath.h"

namespace kvarto {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
// Tokens between two moments at which `seen` may end score_text().
constexpr size_t kPartTokens = 64;

struct Candidate {
  float logit;
  int32_t id;
};
bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// Best first; -1 where there are no more. A heap of the best so far, the worst of them on top: most logits cost one
// comparison.
std::array<int32_t, kTopTokens> likeliest(std::span<const float> logits) {
  std::array<Candidate, kTopTokens> best{};
  const size_t count = std::min(kTopTokens, logits.size());
  const auto end = best.begin() + static_cast<ptrdiff_t>(count);
  for (size_t id = 0; id < count; ++id) best[id] = {logits[id], static_cast<int32_t>(id)};
  std::make_heap(best.begin(), end, better);
  for (size_t id = count; id < logits.size(); ++id) {
    if (!(logits[id] > best.front().logit)) continue;  // of equals the earlier one stays
    std::pop_heap(best.begin(), end, better);
    *(end - 1) = {logits[id], static_cast<int32_t>(id)};
    std::push_heap(best.begin(), end, better);
  }
  std::sort_heap(best.begin(), end, better);
  std::array<int32_t, kTopTokens> ids;
  ids.fill(-1);
  for (size_t i = 0; i < count; ++i) ids[i] = best[i].id;
  return ids;
}

// Sum of exp(logit - max) over all tokens that are not in `ids`, ascending.
double sum_of_others(std::span<const float> logits, double max, std::array<int32_t, kTopTokens> ids) {
  std::ranges::sort(ids);
  double sum = 0.0;
  size_t next = 0;
  const auto add_until = [&](size_t end) {
    for (; next < end; ++next) sum += exp_d(double{logits[next]} - max);
  };
  for (const int32_t id : ids) {
    if (id < 0) continue;
    add_until(static_cast<size_t>(id));
    next = static_cast<size_t>(id) + 1;
  }
  add_until(logits.size());
  return sum;
}

// What make_row() will index with is there.
Status check_text(const Engine& engine, std::span<const TokenId> ids, std::span<const TokenRow> baseline) {
  const auto vocabulary = static_cast<int32_t>(engine.info().vocabulary);
  const uint32_t longest = engine.info().max_model_len;
  if (ids.size() < 2) {
    return fail(ErrorCode::invalid_argument,
                "a text of " + std::to_string(ids.size()) + " tokens has none to predict; give at least 2");
  }
  if (ids.size() > longest) {
    return fail(ErrorCode::invalid_argument, "a text of " + std::to_string(ids.size()) +
                                                 " tokens exceeds max_model_len " + std::to_string(longest) +
                                                 "; cut it, or load the model for longer ones");
  }
  const auto foreign = std::ranges::find_if(ids, [&](TokenId id) { return id < 0 || id >= vocabulary; });
  if (foreign != ids.end()) {
    return fail(ErrorCode::invalid_argument, "id " + std::to_string(*foreign) + " is outside the vocabulary of " +
                                                 std::to_string(vocabulary) + " tokens");
  }
  if (baseline.empty()) return {};
  bool fits = baseline.size() == ids.size() - 1;
  for (size_t i = 0; fits && i < baseline.size(); ++i) {
    const TokenRow& row = baseline[i];
    fits = row.position == static_cast<int32_t>(i + 1) && row.token == ids[i + 1] &&
           std::ranges::all_of(row.ids, [&](int32_t id) { return id < vocabulary; });
  }
  if (fits) return {};
  return fail(ErrorCode::invalid_argument, "the baseline's rows are of another text or model; compute them again");
}

// --- NumPy's format 1.0

static_assert(std::endian::native == std::endian::little && std::is_trivially_copyable_v<TokenRow>);
constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kLengthBytes = 2, kHeaderUnit = 64;

std::string npy_header(size_t rows) {
  std::string text =
      "{'descr': [('position', '<i4'), ('token', '<i4'), ('argmax', '<i4'), ('logprob', '<f4'), ('rest', '<f4'), "
      "('ids', '<i4', (256,)), ('logprobs', '<f4', (256,))], 'fortran_order': False, 'shape': (" +
      std::to_string(rows) + ",), }";
  static_assert(kTopTokens == 256);
  const size_t before = kMagic.size() + kLengthBytes, used = before + text.size() + 1;
  text.append((kHeaderUnit - used % kHeaderUnit) % kHeaderUnit, ' ');
  text += '\n';
  std::string header(kMagic);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return to_hex(hash.finish());
}

}  // namespace

TokenRow make_row(int32_t position, TokenId token, std::span<const float> logits, std::span<const int32_t> ids) {
  TokenRow row;
  row.position = position;
  row.token = token;
  row.argmax = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  if (ids.empty()) {
    row.ids = likeliest(logits);
  } else {
    std::ranges::copy(ids.first<kTopTokens>(), row.ids.begin());
  }
  const double max = logits[static_cast<size_t>(row.argmax)];
  const double rest = sum_of_others(logits, max, row.ids);
  double total = rest;
  for (const int32_t id : row.ids) {
    if (id >= 0) total += exp_d(double{logits[static_cast<size_t>(id)]} - max);
  }
  const double log_total = log_d(total);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(double{logits[static_cast<size_t>(id)]} - max - log_total);
  };
  row.logprob = logprob(token);
  row.rest = static_cast<float>(log_d(rest) - log_total);
  for (size_t i = 0; i < kTopTokens; ++i) row.logprobs[i] = row.ids[i] < 0 ? kImpossible : logprob(row.ids[i]);
  return row;
}

Status score_text(Engine& engine, std::span<const TokenId> ids, std::span<const TokenRow> baseline,
                  const std::function<Status(const TokenRow& row)>& seen) {
  RETURN_IF_ERROR(check_text(engine, ids, baseline));
  RETURN_IF_ERROR(engine.health());
  OpenOptions cold;
  cold.read_cache = false;
  KvSequence sequence = engine.cache().open(ids, cold).sequence;
  std::vector<TokenRow> rows;
  const size_t last = ids.size() - 1;  // nothing follows from it
  for (size_t first = 0; first < last; first += kPartTokens) {
    const std::span<const TokenId> part = ids.subspan(first, std::min(kPartTokens, last - first));
    rows.clear();
    RETURN_IF_ERROR(engine.forward(sequence, part, part.size(), [&](size_t index, std::span<const float> logits) {
      const size_t at = first + index;
      std::span<const int32_t> top;
      if (!baseline.empty()) top = baseline[at].ids;
      rows.push_back(make_row(static_cast<int32_t>(at + 1), ids[at + 1], logits, top));
    }));
    for (const TokenRow& row : rows) {
      if (baseline.empty() && std::isnan(row.logprob)) {
        return fail(ErrorCode::internal, "the baseline's logits of position " + std::to_string(row.position) +
                                             " are no numbers, and nothing can be compared with them; the model's "
                                             "weights or its KV overflow, try kv=f32 as the baseline");
      }
      RETURN_IF_ERROR(seen(row));
    }
  }
  return {};
}

double divergence(const TokenRow& baseline, const TokenRow& candidate) {
  double sum = 0.0;
  const auto add = [&](float p, float q) {
    if (p != kImpossible) sum += exp_d(p) * (double{p} - double{q});
  };
  for (size_t i = 0; i < kTopTokens; ++i) add(baseline.logprobs[i], candidate.logprobs[i]);
  add(baseline.rest, candidate.rest);
  return sum;
}

Result<std::string> write_rows(const std::string& path, std::span<const TokenRow> rows) {
  std::string content = npy_header(rows.size());
  const std::span<const std::byte> bytes = std::as_bytes(rows);
  content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  RETURN_IF_ERROR(write_file_atomically(path, content));
  return sha256_of(content);
}

Result<std::vector<TokenRow>> read_rows(const std::string& path, std::string_view sha256) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  // The header is as long as that of no rows, or longer by whole units.
  const size_t shortest = npy_header(0).size();
  const size_t count = all.size() < shortest ? 0 : (all.size() - shortest) / sizeof(TokenRow);
  const std::string header = npy_header(count);
  if (!all.starts_with(header) || all.size() != header.size() + count * sizeof(TokenRow)) {
    return fail(ErrorCode::corrupt,
                path + ": no rows as this program writes them, or not all of them; remove it to compute them again");
  }
  if (!sha256.empty() && sha256_of(all) != sha256) {
    return fail(ErrorCode::corrupt, path + ": not the rows that were written; remove it to compute them again");
  }
  std::vector<TokenRow> rows(count);
  if (count > 0) std::memcpy(rows.data(), all.data() + header.size(), count * sizeof(TokenRow));
  return rows;
}

}  // namespace kvarto
