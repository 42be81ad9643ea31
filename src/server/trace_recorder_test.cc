#include "server/trace_recorder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "base/file.h"
#include "server/engine_thread.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<uint64_t>;

std::vector<TokenId> range(TokenId first, TokenId count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Json line_of(const TracedRequest& request, std::string_view secret = "secret", uint64_t offset = 0) {
  return Json::parse(trace_line(request, secret, offset));
}
Ids ids_of(const std::vector<TokenId>& prompt, const std::string& salt = "", std::string_view secret = "secret") {
  return line_of({.cache_salt = salt, .prompt = prompt}, secret)["hash_ids"].get<Ids>();
}

// Ids by tools/make_trace_golden.py.
TEST(TraceLine, Golden) {
  EXPECT_EQ(trace_line({.arrival_us = 1'002'003,
                        .cache_salt = "salt",
                        .prompt = range(100, 20),
                        .outputs = {range(0, 30)},
                        .cached_tokens = 16,
                        .finish = "stop"},
                       "secret", 5'000'000'000),
            "{\"timestamp\":5001002.003,\"input_length\":20,\"output_length\":30,"
            "\"hash_ids\":[62767977543030150,6742350234652169544],\"block_size\":16,\"cached_tokens\":16,"
            "\"finish\":\"stop\",\"output_hash_ids\":[5533799010661482708,2697689766115461800]}");
}

TEST(TraceLine, IdsAreEqualAsFarAsPromptsAre) {
  const std::vector<TokenId> common = range(0, 40);  // parts in the third block
  const Ids a = ids_of(joined(common, range(500, 30))), b = ids_of(joined(common, range(700, 30)));
  ASSERT_EQ(a.size(), 5u);  // 70 tokens: four whole blocks and a part of one
  ASSERT_EQ(b.size(), 5u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 2, b.begin()));
  for (size_t i = 2; i < 5; ++i) EXPECT_NE(a[i], b[i]) << i;
  EXPECT_EQ(ids_of(joined(common, range(500, 30))), a);
  // The same tokens behind another beginning are another block.
  const Ids other = ids_of(joined(range(900, 16), range(16, 24)));
  EXPECT_NE(other[1], ids_of(common)[1]);
  // A part of a block is not the block.
  EXPECT_NE(ids_of(range(0, 15))[0], ids_of(range(0, 16))[0]);
  EXPECT_EQ(ids_of(range(0, 16)).size(), 1u);
}

TEST(TraceLine, IdsDependOnSaltAndSecret) {
  const std::vector<TokenId> prompt = range(0, 64);
  std::set<uint64_t> all;
  for (const char* salt : {"", "a", "b", "ab"}) {
    for (const char* secret : {"1", "2"}) {
      for (const uint64_t id : ids_of(prompt, salt, secret)) all.insert(id);
    }
  }
  EXPECT_EQ(all.size(), 4u * 2 * 4);
  // What is secret and what is salt cannot be exchanged.
  EXPECT_NE(ids_of(prompt, "bc", "a"), ids_of(prompt, "c", "ab"));
}

TEST(TraceLine, IdsFitSignedColumns) {
  for (TokenId first = 0; first < 50; ++first) {
    for (const uint64_t id : ids_of(range(first, 64))) EXPECT_LE(id, uint64_t{INT64_MAX});
  }
}

// The next turn's prompt finds what the last one's answer filled.
TEST(TraceLine, AnswersFillBlocksOfLaterPrompts) {
  const std::vector<TokenId> prompt = range(0, 24), answer = range(100, 41);
  const Json line = line_of({.prompt = prompt, .outputs = {answer}});
  const Ids filled = line["output_hash_ids"].get<Ids>();
  const Ids next = ids_of(joined(joined(prompt, answer), range(300, 40)));
  ASSERT_EQ(filled.size(), 3u);  // 24 + 40 computed tokens are four blocks, one of them the prompt's own
  EXPECT_TRUE(std::equal(filled.begin(), filled.end(), next.begin() + 1));
  EXPECT_EQ(line["hash_ids"].get<Ids>()[0], next[0]);
}

TEST(TraceLine, SamplesAreCountedAndTheLongestIsTheOutput) {
  const Json line = line_of({.prompt = range(0, 16), .outputs = {range(100, 17), range(200, 33), {}}, .finish = "x"});
  EXPECT_EQ(line["samples"], 3);
  EXPECT_EQ(line["output_length"], 33);
  EXPECT_EQ(line["output_hash_ids"].size(), 3u);
  EXPECT_FALSE(line_of({.prompt = range(0, 16), .outputs = {range(0, 3)}}).contains("samples"));
}

TEST(TraceLine, OfNothing) {
  const Json line = line_of({.prompt = range(0, 3), .outputs = {{}}, .finish = "cancelled"});
  EXPECT_EQ(line["output_length"], 0);
  EXPECT_EQ(line["hash_ids"].size(), 1u);
  EXPECT_TRUE(line["output_hash_ids"].empty());
}

// --- the file

class TraceFile : public testing::Test {
 protected:
  TraceFile() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~TraceFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "trace.jsonl") const { return (folder_ / name).string(); }
  std::string text() const { return read_file(path()).value_or("unreadable"); }
  std::vector<Json> lines() const {
    std::vector<Json> all;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) all.push_back(Json::parse(line));
    return all;
  }
  static std::string refusal(const std::string& at) {
    const auto opened = TraceRecorder::open(at);
    return opened ? "opened" : opened.error().message;
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("kvarto_trace_" + std::to_string(::getpid()));
};

RequestResult result_of(std::vector<TokenId> tokens, FinishReason finish = FinishReason::length) {
  RequestResult result;
  SampleResult& sample = result.samples.emplace_back();
  sample.tokens = std::move(tokens);
  sample.text = "SECRET ANSWER";
  sample.finish = finish;
  result.cached_tokens = 7;
  return result;
}

TEST_F(TraceFile, LinesOfManyThreadsAreWholeAndAllThere) {
  {
    auto recorder = TraceRecorder::open(path());
    ASSERT_TRUE(recorder) << recorder.error().message;
    std::vector<std::thread> threads;
    for (TokenId t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (TokenId i = 0; i < 250; ++i) {
          (*recorder)->record({.arrival_us = static_cast<uint64_t>(i), .prompt = range(t * 1000 + i, 40)},
                              result_of(range(0, i % 5)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::vector<Json> all = lines();
  EXPECT_EQ(all.size(), 1000u);
  std::set<uint64_t> firsts;
  for (const Json& line : all) {
    EXPECT_EQ(line["input_length"], 40);
    EXPECT_EQ(line["cached_tokens"], 7);
    EXPECT_EQ(line["finish"], "length");
    firsts.insert(line["hash_ids"][0].get<uint64_t>());
  }
  EXPECT_EQ(firsts.size(), 1000u);
  EXPECT_EQ(text().find("SECRET"), std::string::npos);
}

// A restarted server goes on in the same file, under another secret.
TEST_F(TraceFile, IsContinued) {
  for (int run = 0; run < 2; ++run) {
    auto recorder = TraceRecorder::open(path());
    ASSERT_TRUE(recorder) << recorder.error().message;
    RequestResult result = result_of(range(0, 2), FinishReason::stop);
    if (run == 1) result.error = Error{ErrorCode::internal, "planted"};
    (*recorder)->record({.arrival_us = steady_us(), .prompt = range(0, 16)}, result);
  }
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_NE(all[0]["hash_ids"], all[1]["hash_ids"]);
  EXPECT_LE(all[0]["timestamp"].get<double>(), all[1]["timestamp"].get<double>());
  EXPECT_GT(all[0]["timestamp"].get<double>(), 1.7e12);  // ms since 1970
  EXPECT_EQ(all[0]["finish"], "stop");
  EXPECT_EQ(all[1]["finish"], "error");
}

TEST_F(TraceFile, HalfALineAtTheEndStaysALineOfItsOwn) {
  std::ofstream(path()) << "{\"timestamp\":1}\n{\"timest";
  ASSERT_TRUE(TraceRecorder::open(path()));
  EXPECT_EQ(text(), "{\"timestamp\":1}\n{\"timest\n");
}

TEST_F(TraceFile, KeepsToTheBlocksThatItBeganWith) {
  const auto refused = [&](uint32_t block_tokens) {
    const auto recorder = TraceRecorder::open(path());
    EXPECT_TRUE(recorder) << recorder.error().message;
    const Status fits = (*recorder)->check_block_tokens(block_tokens);
    return fits ? "" : fits.error().message;
  };
  EXPECT_EQ(refused(32), "") << "nothing is there yet";
  {
    auto recorder = TraceRecorder::open(path());
    ASSERT_TRUE(recorder);
    // Longer than is read at once.
    (*recorder)->record({.block_tokens = 32, .prompt = range(0, 200'000)}, result_of({}));
  }
  EXPECT_EQ(refused(32), "");
  const std::string told = refused(16);
  EXPECT_NE(told.find("has blocks of 32 tokens"), std::string::npos) << told;
  EXPECT_NE(told.find("--block-size 32"), std::string::npos) << told;
  std::ofstream(path()) << "{\"timestamp\":1}\n";
  EXPECT_EQ(refused(16), "") << "it does not say";
}

TEST_F(TraceFile, RefusesWhatItCannotWrite) {
  EXPECT_NE(refusal(path("no/such/folder")).find("No such file"), std::string::npos);
  EXPECT_NE(refusal(path("no/such/folder")).find("--record"), std::string::npos);
  EXPECT_NE(refusal(path("")).find("directory"), std::string::npos);
  std::ofstream(path("notes.txt")) << "dear diary\n";
  EXPECT_NE(refusal(path("notes.txt")).find("is no trace"), std::string::npos);
  EXPECT_EQ(read_file(path("notes.txt")).value(), "dear diary\n");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(refusal(path("pipe")).find("pipe"), std::string::npos);
  const auto first = TraceRecorder::open(path());
  ASSERT_TRUE(first);
  EXPECT_NE(refusal(path()).find("another process"), std::string::npos);
}

TEST_F(TraceFile, AFullDiskCostsLinesAndNothingElse) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  auto recorder = TraceRecorder::open("/dev/full");
  ASSERT_TRUE(recorder) << recorder.error().message;
  for (int i = 0; i < 100; ++i) (*recorder)->record({.prompt = range(0, 40)}, result_of({}));
  for (int i = 0; i < 10'000 && (*recorder)->counts().dropped < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ((*recorder)->counts().dropped, 100u);
  EXPECT_EQ((*recorder)->counts().written, 0u);
}

// A file that may grow no more holds whole lines, and the rest follows when there is room again.
TEST_F(TraceFile, NoHalfLines) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  auto recorder = TraceRecorder::open(path());
  ASSERT_TRUE(recorder);
  const auto settled = [&](uint64_t count) {
    for (int i = 0; i < 10'000; ++i) {
      const TraceCounts now = (*recorder)->counts();
      if (now.written + now.dropped >= count) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  (*recorder)->record({.prompt = range(0, 40)}, result_of({}));
  settled(1);
  const rlimit small{std::filesystem::file_size(path()) + 100, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  (*recorder)->record({.prompt = range(1, 40)}, result_of({}));
  settled(2);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_TRUE(text().ends_with("}\n"));
  (*recorder)->record({.prompt = range(2, 40)}, result_of({}));
  settled(3);
  std::signal(SIGXFSZ, old);
  EXPECT_EQ(lines().size(), 2u);
  EXPECT_EQ((*recorder)->counts().written, 2u);
  EXPECT_EQ((*recorder)->counts().dropped, 1u);
}

TEST_F(TraceFile, WhatWaitsIsBounded) {
  auto recorder = TraceRecorder::open(path());
  ASSERT_TRUE(recorder);
  (*recorder)->record({.prompt = std::vector<TokenId>(9'000'000, 1)}, result_of({}));  // 36 MB
  EXPECT_EQ((*recorder)->counts().dropped, 1u);
  (*recorder)->record({.prompt = range(0, 40)}, result_of({}));
  recorder->reset();
  EXPECT_EQ(lines().size(), 1u);
}

}  // namespace
}  // namespace kvarto
