#include "eval/text_score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "base/file.h"
#include "base/hash.h"

namespace kvarto {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t n, uint64_t seed, float spread = 3.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

// By the definition, in long double.
std::vector<long double> log_softmax(std::span<const float> logits) {
  const long double max = *std::ranges::max_element(logits);
  long double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  std::vector<long double> out;
  for (const float x : logits) out.push_back(x - max - std::log(sum));
  return out;
}

// Sorting all of them: what is selected by a heap otherwise.
std::vector<int32_t> order_of(std::span<const float> logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(
      ids, [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  return ids;
}

TEST(MakeRow, IsTheLogSoftmaxOfTheLikeliestAndOfTheRest) {
  for (const size_t n : {300u, 5000u}) {
    const std::vector<float> logits = random_logits(n, n);
    const std::vector<long double> want = log_softmax(logits);
    const std::vector<int32_t> order = order_of(logits);
    const TokenRow row = make_row(9, 123, logits);
    EXPECT_EQ(row.position, 9);
    EXPECT_EQ(row.token, 123);
    EXPECT_EQ(row.argmax, order[0]);
    EXPECT_NEAR(row.logprob, static_cast<double>(want[123]), 1e-6);
    long double rest = 0;
    for (size_t i = 0; i < n; ++i) {
      const auto id = static_cast<size_t>(order[i]);
      if (i >= kTopTokens) {
        rest += std::exp(want[id]);
        continue;
      }
      ASSERT_EQ(row.ids[i], order[i]) << i;
      ASSERT_NEAR(row.logprobs[i], static_cast<double>(want[id]), 1e-6) << i;
    }
    EXPECT_NEAR(row.rest, static_cast<double>(std::log(rest)), 1e-6);
  }
}

TEST(MakeRow, OfEqualLogitsTheLowestIdIsFirst) {
  std::vector<float> logits(1000, 1.0f);
  logits[700] = logits[20] = 2.0f;
  const TokenRow row = make_row(1, 0, logits);
  EXPECT_EQ(row.argmax, 20);
  EXPECT_EQ(row.ids[0], 20);
  EXPECT_EQ(row.ids[1], 700);
  for (int32_t i = 2; i < 256; ++i) ASSERT_EQ(row.ids[static_cast<size_t>(i)], i - (i < 22 ? 2 : 1));
  // Ascending logits: every one of them goes through the heap.
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i / 2);
  const TokenRow pairs = make_row(1, 0, logits);
  EXPECT_EQ(pairs.argmax, 998);
  for (int32_t i = 0; i < 256; ++i) ASSERT_EQ(pairs.ids[static_cast<size_t>(i)], 998 - i / 2 * 2 + i % 2);
}

TEST(MakeRow, AVocabularyBelowTheTopLeavesEntriesUnused) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  const TokenRow row = make_row(1, 1, logits);
  EXPECT_NEAR(row.logprob, std::log(2.0 / 8.0), 1e-6);
  EXPECT_EQ(row.ids[0], 2);
  EXPECT_EQ(row.ids[2], 0);
  EXPECT_NEAR(row.logprobs[2], std::log(1.0 / 8.0), 1e-6);
  EXPECT_EQ(row.ids[3], -1);
  EXPECT_EQ(row.ids[255], -1);
  EXPECT_EQ(row.logprobs[3], kImpossible);
  EXPECT_EQ(row.rest, kImpossible);
}

// One minus the top's probability would be 0 here.
TEST(MakeRow, ASmallRestIsNotLostBesideTheTop) {
  std::vector<float> logits(300, 0.0f);
  logits[7] = 60.0f;
  const TokenRow row = make_row(1, 7, logits);
  EXPECT_NEAR(row.rest, std::log(300.0 - 256.0) - 60.0, 1e-5);
  EXPECT_EQ(row.logprob, 0.0f);
}

TEST(MakeRow, TakesTheBaselinesTokens) {
  const std::vector<float> base = random_logits(2000, 1), other = random_logits(2000, 2);
  const TokenRow baseline = make_row(1, 3, base);
  const TokenRow row = make_row(1, 3, other, baseline.ids);
  EXPECT_EQ(row.ids, baseline.ids);
  EXPECT_EQ(row.argmax, order_of(other)[0]);
  const std::vector<long double> want = log_softmax(other);
  long double top = 0;
  for (size_t i = 0; i < kTopTokens; ++i) {
    ASSERT_NEAR(row.logprobs[i], static_cast<double>(want[static_cast<size_t>(row.ids[i])]), 1e-6);
    top += std::exp(want[static_cast<size_t>(row.ids[i])]);
  }
  EXPECT_NEAR(row.rest, static_cast<double>(std::log(1 - top)), 1e-6);
  // Its own: nothing changes.
  const TokenRow again = make_row(1, 3, base, baseline.ids);
  EXPECT_EQ(again.logprobs, baseline.logprobs);
  EXPECT_EQ(again.rest, baseline.rest);
  EXPECT_EQ(divergence(baseline, again), 0.0);
}

TEST(MakeRow, WhatIsNoNumberShows) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t place : {size_t{0}, size_t{5}, size_t{900}}) {
      std::vector<float> logits = random_logits(1000, 3);
      logits[place] = bad;
      EXPECT_TRUE(std::isnan(make_row(1, 6, logits).logprob)) << place;
    }
  }
  std::vector<float> masked = random_logits(1000, 3);
  masked[6] = kImpossible;
  EXPECT_EQ(make_row(1, 6, masked).logprob, kImpossible);
}

TokenRow by_hand(std::vector<double> top, double rest) {
  TokenRow row;
  row.ids.fill(-1);
  row.logprobs.fill(kImpossible);
  for (size_t i = 0; i < top.size(); ++i) {
    row.ids[i] = static_cast<int32_t>(i);
    row.logprobs[i] = static_cast<float>(std::log(top[i]));
  }
  row.rest = static_cast<float>(std::log(rest));
  return row;
}

TEST(Divergence, ByHand) {
  const TokenRow p = by_hand({0.5, 0.25}, 0.25), q = by_hand({0.25, 0.5}, 0.25), r = by_hand({0.5, 0.375}, 0.125);
  EXPECT_NEAR(divergence(p, q), 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(divergence(p, r), 0.25 * std::log(0.25 / 0.375) + 0.25 * std::log(2.0), 1e-6);
  EXPECT_EQ(divergence(p, p), 0.0);
  const TokenRow whole = by_hand({0.75, 0.25}, 0.0);  // there is no rest
  EXPECT_NEAR(divergence(whole, q), 0.75 * std::log(3.0) + 0.25 * std::log(0.5), 1e-6);
  EXPECT_EQ(divergence(q, whole), std::numeric_limits<double>::infinity());
}

// What is left out makes it less, never more.
TEST(Divergence, IsALowerBoundOfTheTrueOne) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> base = random_logits(3000, seed);
    std::vector<float> other = base;
    const std::vector<float> noise = random_logits(3000, seed + 100, 0.5f);
    for (size_t i = 0; i < other.size(); ++i) other[i] += noise[i];
    const std::vector<long double> p = log_softmax(base), q = log_softmax(other);
    long double truth = 0;
    for (size_t i = 0; i < p.size(); ++i) truth += std::exp(p[i]) * (p[i] - q[i]);
    const TokenRow baseline = make_row(1, 0, base);
    const double found = divergence(baseline, make_row(1, 0, other, baseline.ids));
    EXPECT_LE(found, static_cast<double>(truth));
    EXPECT_GT(found, 0.7 * static_cast<double>(truth));
  }
}

// --- texts

std::unique_ptr<Engine> tiny() {
  return std::move(Engine::load(KVARTO_SOURCE_DIR "/tests/tiny/tiny_llama.gguf",
                                {.threads = 1, .kv_cache_memory_bytes = 8 << 20, .max_model_len = 512})
                       .value());
}

std::vector<TokenId> some_ids(size_t n) {
  std::vector<TokenId> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<TokenId>(i * i * 31 % 509);
  return ids;
}

TEST(ScoreText, GivesEachTokenButTheFirstInOrder) {
  const auto engine = tiny();
  const std::vector<TokenId> ids = some_ids(200);
  std::vector<double> want;
  ASSERT_TRUE(engine->score(ids, [&](size_t position, std::span<const float> logits) {
    if (position + 1 < ids.size()) {
      want.push_back(static_cast<double>(log_softmax(logits)[static_cast<size_t>(ids[position + 1])]));
    }
  }));
  std::vector<TokenRow> rows;
  const auto keep = [&](const TokenRow& row) -> Status {
    rows.push_back(row);
    return {};
  };
  ASSERT_TRUE(score_text(*engine, ids, {}, keep));  // the cache knows the text by now, and is not asked
  ASSERT_EQ(rows.size(), 199u);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].position, static_cast<int32_t>(i + 1));
    ASSERT_EQ(rows[i].token, ids[i + 1]);
    ASSERT_NEAR(rows[i].logprob, want[i], 1e-6);
  }
  const std::vector<TokenRow> baseline = std::exchange(rows, {});
  ASSERT_TRUE(score_text(*engine, ids, baseline, keep));
  ASSERT_EQ(rows.size(), 199u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(divergence(baseline[i], rows[i]), 0.0);
  EXPECT_EQ(engine->stats().kv.blocks_active, 0u);
}

TEST(ScoreText, EndsWithWhatSeenFailsWith) {
  const auto engine = tiny();
  const std::vector<TokenId> ids = some_ids(300);
  int calls = 0;
  const Status ended = score_text(*engine, ids, {}, [&](const TokenRow&) -> Status {
    if (++calls < 10) return {};
    return fail(ErrorCode::cancelled, "enough");
  });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::cancelled);
  EXPECT_EQ(calls, 10);
  EXPECT_LE(engine->cache().match(ids).tokens, 64u);  // the rest was not computed
  EXPECT_EQ(engine->stats().kv.blocks_active, 0u);
}

TEST(ScoreText, RefusesWhatDoesNotFit) {
  const auto engine = tiny();
  std::vector<TokenRow> rows;
  const auto keep = [&](const TokenRow& row) -> Status {
    rows.push_back(row);
    return {};
  };
  const auto refusal = [&](std::vector<TokenId> ids, std::span<const TokenRow> baseline) {
    const Status status = score_text(*engine, ids, baseline, keep);
    return status ? std::string() : status.error().message;
  };
  EXPECT_NE(refusal({}, {}).find("at least 2"), std::string::npos);
  EXPECT_NE(refusal({1}, {}).find("at least 2"), std::string::npos);
  EXPECT_NE(refusal(some_ids(513), {}).find("max_model_len 512"), std::string::npos);
  EXPECT_NE(refusal({1, 2, 512}, {}).find("512"), std::string::npos);  // also the last, that is not computed
  EXPECT_NE(refusal({1, 2, -1}, {}).find("-1"), std::string::npos);
  EXPECT_TRUE(rows.empty());
  ASSERT_EQ(refusal(some_ids(512), {}), "");

  std::vector<TokenRow> baseline = std::exchange(rows, {});
  EXPECT_NE(refusal(some_ids(511), baseline).find("another text"), std::string::npos);
  baseline[100].ids[3] = 512;
  EXPECT_NE(refusal(some_ids(512), baseline).find("another text"), std::string::npos);
  baseline[100].ids[3] = 0;
  baseline[50].token ^= 1;
  EXPECT_NE(refusal(some_ids(512), baseline).find("another text"), std::string::npos);
  EXPECT_TRUE(rows.empty());
}

// --- files

std::string temporary(const char* name) { return ::testing::TempDir() + name; }

TEST(Rows, AFileHasTheFormThatNumPyWants) {
  std::vector<TokenRow> rows(12);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = make_row(static_cast<int32_t>(i + 1), 5, random_logits(400, i));
  const std::string path = temporary("rows_form.npy");
  ASSERT_TRUE(write_rows(path, rows));
  const std::string all = read_file(path).value();
  EXPECT_EQ(all.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<uint8_t>(all[8]) + 256u * static_cast<uint8_t>(all[9]);
  EXPECT_EQ((10 + length) % 64, 0u);
  const std::string header = all.substr(10, length);
  const std::string want =
      "{'descr': [('position', '<i4'), ('token', '<i4'), ('argmax', '<i4'), ('logprob', '<f4'), ('rest', '<f4'), "
      "('ids', '<i4', (256,)), ('logprobs', '<f4', (256,))], 'fortran_order': False, 'shape': (12,), }";
  EXPECT_EQ(header.substr(0, want.size()), want);
  EXPECT_EQ(header.find_first_not_of(' ', want.size()), length - 1);
  EXPECT_EQ(header.back(), '\n');
  ASSERT_EQ(all.size(), 10 + length + 12 * 2068);
  // The third row, by its bytes.
  const char* const third = all.data() + 10 + length + 2 * 2068;
  int32_t position = 0, id = 0;
  float rest = 0, logprob = 0;
  std::memcpy(&position, third, 4);
  std::memcpy(&rest, third + 16, 4);
  std::memcpy(&id, third + 20 + 4 * 7, 4);
  std::memcpy(&logprob, third + 20 + 1024 + 4 * 7, 4);
  EXPECT_EQ(position, 3);
  EXPECT_EQ(rest, rows[2].rest);
  EXPECT_EQ(id, rows[2].ids[7]);
  EXPECT_EQ(logprob, rows[2].logprobs[7]);
}

TEST(Rows, AreReadAsTheyWereWritten) {
  const std::string path = temporary("rows_back.npy");
  for (const size_t n : {0u, 1u, 9u, 10u, 1234u}) {
    std::vector<TokenRow> rows(n);
    for (size_t i = 0; i < n; ++i) {
      rows[i].position = static_cast<int32_t>(i);
      rows[i].logprobs.fill(static_cast<float>(i) / 3.0f);
      rows[i].rest = kImpossible;
    }
    const std::string sha256 = write_rows(path, rows).value();
    Sha256 hash;
    hash.update(read_file(path).value());
    EXPECT_EQ(sha256, to_hex(hash.finish()));
    for (const std::string& name : {sha256, std::string()}) {
      const auto back = read_rows(path, name);
      ASSERT_TRUE(back) << back.error().message;
      ASSERT_EQ(back->size(), n);
      if (n > 0) EXPECT_EQ(std::memcmp(back->data(), rows.data(), n * sizeof(TokenRow)), 0);
    }
  }
}

TEST(Rows, OtherBytesAreOtherRows) {
  const std::string path = temporary("rows_other.npy");
  std::vector<TokenRow> rows(5);
  const std::string sha256 = write_rows(path, rows).value();
  rows[4].logprobs[255] = 1e-30f;  // as long, and of the same form
  ASSERT_TRUE(write_rows(path, rows));
  EXPECT_TRUE(read_rows(path));
  const auto read = read_rows(path, sha256);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::corrupt);
  EXPECT_EQ(read.error().message.find(path + ": not the rows that were written"), 0u);
}

TEST(Rows, WhatIsNoSuchFileIsRefusedByName) {
  const std::string path = temporary("rows_bad.npy");
  std::vector<TokenRow> rows(3);
  ASSERT_TRUE(write_rows(path, rows));
  const std::string good = read_file(path).value();
  std::string dtype = good, order = good, version = good;
  dtype.replace(dtype.find("<f4"), 3, "<f8");
  order.replace(order.find("False"), 5, "True ");
  version[6] = 2;
  const std::string bad[] = {"",
                             "no rows",
                             good.substr(0, 9),
                             good.substr(0, good.size() - 1),
                             good + "x",
                             dtype,
                             order,
                             version,
                             good.substr(0, good.size() - sizeof(TokenRow)),
                             good + std::string(sizeof(TokenRow), 'x')};
  for (const std::string& content : bad) {
    ASSERT_TRUE(write_file_atomically(path, content));
    const auto read = read_rows(path);
    ASSERT_FALSE(read) << &content - bad;
    EXPECT_EQ(read.error().code, ErrorCode::corrupt);
    EXPECT_NE(read.error().message.find(path), std::string::npos);
  }
  const auto missing = read_rows(path + ".none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_FALSE(write_rows(temporary("no/such/folder/rows.npy"), rows));
}

}  // namespace
}  // namespace kvarto
