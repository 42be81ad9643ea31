// The lines are made up in the forms of the Mooncake and Azure traces.
#include "cli/load_trace.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(LoadTrace, ReadsBlocksWithThePartialLastOne) {
  const Result<Trace> trace = parse_trace(
      "{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 4, 9]}\r\n"
      "\n"
      "{\"timestamp\": 1500, \"input_length\": 512, \"output_length\": 3, \"hash_ids\": [0]}",
      0);
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->block_tokens, 512u);
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].input_tokens, 512u);  // sorted by time
  EXPECT_DOUBLE_EQ(trace->requests[0].arrival_s, 0);
  EXPECT_DOUBLE_EQ(trace->requests[1].arrival_s, 1.5);
  EXPECT_EQ(trace->requests[1].blocks, (std::vector<uint64_t>{0, 4, 9}));
  EXPECT_EQ(trace->requests[1].output_tokens, 7u);
}

TEST(LoadTrace, FindsTheSizeOfFullBlocksOnly) {
  const Result<Trace> trace =
      parse_trace("{\"timestamp\":0,\"session\":1,\"input_length\":200,\"output_length\":1,\"hash_ids\":[1,2,3]}\n", 0);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->block_tokens, 64u);
}

TEST(LoadTrace, TakesTheSizeThatIsSaid) {
  const std::string line =
      R"({"timestamp":0,"input_length":40,"output_length":1,"hash_ids":["ab","cd"],"block_size":16})";
  const Result<Trace> trace = parse_trace(line, 0);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->block_tokens, 16u);
  EXPECT_NE(trace->requests[0].blocks[0], trace->requests[0].blocks[1]);
  EXPECT_EQ(parse_trace(line, 32)->block_tokens, 32u);
  EXPECT_EQ(parse_trace(line, 0)->requests[0].blocks, trace->requests[0].blocks);
}

// Two servers with different blocks wrote one file: no number fits both.
TEST(LoadTrace, RefusesBlocksOfTwoSizes) {
  const auto line = [](const std::string& size) {
    return R"({"timestamp":0,"input_length":32,"output_length":1,"hash_ids":[1,2])" + size + "}\n";
  };
  const std::string sixteen = line(R"(,"block_size":16)"), thirty_two = line(R"(,"block_size":32)"), silent = line("");
  for (const auto& [text, words] :
       {std::pair{sixteen + sixteen + thirty_two,
                  "line 3 of the trace: has block_size 32 where the lines before have block_size 16"},
        std::pair{sixteen + silent, "line 2 of the trace: has no block_size where the lines before have block_size 16"},
        std::pair{silent + sixteen,
                  "line 2 of the trace: has block_size 16 where the lines before have no block_size"}}) {
    const Result<Trace> trace = parse_trace(text, 0);
    ASSERT_FALSE(trace) << text;
    EXPECT_NE(trace.error().message.find(words), std::string::npos) << trace.error().message;
    EXPECT_NE(trace.error().message.find("--trace-block"), std::string::npos) << trace.error().message;
    EXPECT_EQ(parse_trace(text, 16)->block_tokens, 16u) << "whoever reads it says what holds";
  }
  const std::string without_ids = R"({"timestamp":0,"input_length":32,"output_length":1})"
                                  "\n";
  EXPECT_EQ(parse_trace(without_ids + sixteen + without_ids + sixteen, 0)->block_tokens, 16u);
}

TEST(LoadTrace, ReadsAzuresTables) {
  const Result<Trace> trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.5000000,4808,10\r\n"
      "2023-11-17 00:00:01.2500000,3180,8\r\n",
      0);
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->block_tokens, 0u);
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].input_tokens, 4808u);
  EXPECT_NEAR(trace->requests[1].arrival_s, 1.75, 1e-6);
  EXPECT_EQ(trace->requests[1].output_tokens, 8u);
}

TEST(LoadTrace, NamesTheLineThatIsWrong) {
  const std::string good = R"({"timestamp":0,"input_length":1,"output_length":1})";
  for (const char* bad : {"{", "[]", R"({"timestamp":"0","input_length":1,"output_length":1})",
                          R"({"timestamp":0,"input_length":-1,"output_length":1})",
                          R"({"timestamp":0,"input_length":1,"output_length":1.5})",
                          R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[null]})"}) {
    const Result<Trace> trace = parse_trace(good + "\n" + bad, 0);
    ASSERT_FALSE(trace) << bad;
    EXPECT_NE(trace.error().message.find("line 2"), std::string::npos) << trace.error().message;
  }
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* bad : {"x", "2023-11-16 18:17:03,1", "2023-13-16 18:17:03,1,1", "2023-11-16 18:17:03,1,1,1", ",,"}) {
    EXPECT_FALSE(parse_trace(head + bad, 0)) << bad;
  }
  EXPECT_FALSE(parse_trace("", 0));
  EXPECT_NE(parse_trace("\x1f\x8b\x08", 0).error().message.find("zcat"), std::string::npos);
  EXPECT_FALSE(
      parse_trace(R"({"timestamp":0,"input_length":100,"output_length":1,"hash_ids":[1,2,3,4,5,6,7,8,9]})", 0));
}

TEST(LoadTrace, Scales) {
  Trace trace{512, {{0, 5120, 100, {1, 2}}, {10, 3, 0, {}}}};
  const Trace small = scaled(trace, 0.1, 2);
  EXPECT_EQ(small.block_tokens, 51u);
  EXPECT_EQ(small.requests[0].input_tokens, 512u);
  EXPECT_EQ(small.requests[0].output_tokens, 10u);
  EXPECT_EQ(small.requests[1].input_tokens, 1u);
  EXPECT_EQ(small.requests[1].output_tokens, 0u);
  EXPECT_DOUBLE_EQ(small.requests[1].arrival_s, 5);
}

}  // namespace
}  // namespace kvarto
