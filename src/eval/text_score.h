// Teacher forcing: what a setting makes of each token of a text, and how far that is from what the baseline made of it.
// Kullback-Leibler divergence over the baseline's kTopTokens likeliest tokens and one bucket for all others: a lower
// bound of the true one (data-processing inequality), in nats. Pure functions but for the engine; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/engine.h"

namespace kvarto {

inline constexpr size_t kTopTokens = 256;

// The prediction of one token, from those before it. Unused entries (a vocabulary below kTopTokens) have id -1 and
// log-probability -infinity. As it stands in a dump: little-endian, no padding.
struct TokenRow {
  int32_t position = 0;  // of the token in its text, >= 1
  int32_t token = 0;
  int32_t argmax = 0;                        // the likeliest; of equals the lowest id
  float logprob = 0;                         // of `token`
  float rest = 0;                            // log of the probability of all that are not in `ids` (-infinity: none)
  std::array<int32_t, kTopTokens> ids{};     // the baseline's likeliest, best first (of equals the lowest id first)
  std::array<float, kTopTokens> logprobs{};  // of these
};
static_assert(sizeof(TokenRow) == 5 * 4 + kTopTokens * 8);

// From raw logits [vocabulary]: the sums in double. `ids`: the baseline's [kTopTokens], or empty: its own likeliest.
// Logits with a NaN or +infinity make `logprob` NaN.
TokenRow make_row(int32_t position, TokenId token, std::span<const float> logits, std::span<const int32_t> ids = {});

// All tokens of `ids` but the first, in order, from an empty cache. `baseline`: rows of the same ids, or empty: then
// this is the baseline, and logits that are no numbers are an error, since nothing can be compared with them; of others
// such rows are seen, too. `seen` gets each row, some at a time; what it fails with ends the call and is returned.
Status score_text(Engine& engine, std::span<const TokenId> ids, std::span<const TokenRow> baseline,
                  const std::function<Status(const TokenRow& row)>& seen);

// KL(baseline || candidate) of one position, >= 0 but for rounding; exactly 0 for equal rows. The sum is in double,
// ascending.
double divergence(const TokenRow& baseline, const TokenRow& candidate);

// Rows as a NumPy file (format 1.0, a structured type with TokenRow's fields in order: '<i4' position, token, argmax,
// '<f4' logprob, rest, '<i4' ids (256,), '<f4' logprobs (256,)). Written beside and renamed; returns the SHA-256 of the
// file, in hex. Reading refuses what is no such file, naming it, and a file of another SHA-256 where one is given.
Result<std::string> write_rows(const std::string& path, std::span<const TokenRow> rows);
Result<std::vector<TokenRow>> read_rows(const std::string& path, std::string_view sha256 = {});

}  // namespace kvarto
