#include "cli/options.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(ParseBytes, CapitalLettersAreBinaryAndSmallOnesDecimal) {
  EXPECT_EQ(*parse_bytes("0"), 0u);
  EXPECT_EQ(*parse_bytes("1536"), 1536u);
  EXPECT_EQ(*parse_bytes("512M"), 536870912u);
  EXPECT_EQ(*parse_bytes("512m"), 512000000u);
  EXPECT_EQ(*parse_bytes("2GiB"), 2147483648u);
  EXPECT_EQ(*parse_bytes("1.5k"), 1500u);
  EXPECT_EQ(*parse_bytes("7B"), 7u);
}

TEST(ParseBytes, RefusesWhatIsNoNumberOfBytes) {
  for (const char* text : {"", "M", "-1", "1.5", "1Q", "1MM", "nan", "inf", "1e30", "12 M", "0x10"}) {
    const Result<size_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes) << text;
    EXPECT_NE(bytes.error().message.find(text), std::string::npos) << bytes.error().message;
  }
}

TEST(ParseCounts, ReadsAList) {
  EXPECT_EQ(*parse_counts("-d", "0,4096,16384", "0,4096"), (std::vector<uint32_t>{0, 4096, 16384}));
  EXPECT_EQ(*parse_counts("-d", "8", "0,4096"), (std::vector<uint32_t>{8}));
}

TEST(ParseCounts, RefusesAnythingElseAndNamesTheFlag) {
  for (const char* text : {"", "1,", ",1", "1 2", "1,x", "-1", "010", "0x10", "99999999999"}) {
    const auto counts = parse_counts("--threads", text, "1,2");
    ASSERT_FALSE(counts) << text;
    EXPECT_NE(counts.error().message.find("--threads"), std::string::npos);
    EXPECT_TRUE(counts.error().message.ends_with("such as 1,2")) << counts.error().message;
  }
}

TEST(ParseIds, ReadsArraysAndSpacedIds) {
  const std::vector<TokenId> ids{1, 22, 333};
  for (const char* text : {"[1,22,333]", " [ 1 , 22,\n333 ]\n", "1 22 333", "1\n22\t333\n", "1,22,333"}) {
    EXPECT_EQ(*parse_ids(text), ids) << text;
  }
}

TEST(ParseIds, RefusesWhatIsNoListOfIds) {
  for (const char* text : {"", "[]", " ", "[1", "1]", "[1]2", "1 two", "1.5", "[[1]]", "[1,,2]", "[1 2]", "[1,]",
                           "[,1]", "[1,", "99999999999"}) {
    EXPECT_FALSE(parse_ids(text)) << text;
  }
}

TEST(EngineOptions, RefusesAnUnknownDtype) {
  ModelFlags flags;
  flags.kv_cache_dtype = "int3";
  EXPECT_FALSE(engine_options(flags, 1));
  flags.kv_cache_dtype = "bf16";
  EXPECT_EQ(engine_options(flags, 5)->k_dtype, KvDtype::bf16);
  EXPECT_EQ(engine_options(flags, 5)->max_num_seqs, 5u);
  flags.max_num_seqs = 9;
  EXPECT_EQ(engine_options(flags, 5)->max_num_seqs, 9u);
}

}  // namespace
}  // namespace kvarto
