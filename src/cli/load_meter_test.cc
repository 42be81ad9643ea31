// The streams are those of compat's shapes (vLLM) and of llama-server's replies, written out by hand.
#include "cli/load_meter.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

struct Stamped {
  double at;
  const char* data;
};

Status play(ReplyMeter& meter, const std::vector<Stamped>& events) {
  for (const auto& [at, data] : events) {
    RETURN_IF_ERROR(meter.take("data: " + std::string(data) + "\n\n", at));
  }
  return meter.end(events.back().at);
}

TEST(ReplyMeter, ChatStream) {
  LoadRecord record;
  ReplyMeter meter(record, true);
  ASSERT_TRUE(
      play(meter, {{1.0, R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})"},
                   {2.0, R"({"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]})"},
                   {2.5, R"({"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]})"},
                   {4.0, R"({"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]})"},
                   {4.1, R"({"choices":[{"index":0,"delta":{},"finish_reason":"length"}]})"},
                   {4.2, R"({"choices":[],"usage":{"prompt_tokens":31,"completion_tokens":4,"total_tokens":35,)"
                         R"("prompt_tokens_details":{"cached_tokens":16}}})"},
                   {4.3, "[DONE]"}}));
  EXPECT_EQ(meter.text(), "Hello");
  EXPECT_EQ(record.events, 3u);
  EXPECT_DOUBLE_EQ(record.first_s, 2.0);
  EXPECT_DOUBLE_EQ(record.last_s, 4.0);
  EXPECT_EQ(record.gaps_s, (std::vector<float>{0.5f, 1.5f}));
  EXPECT_EQ(record.prompt_tokens, 31u);
  EXPECT_EQ(record.output_tokens, 4u);
  EXPECT_EQ(record.cached_tokens, 16u);
  EXPECT_TRUE(record.usage && record.cached_known);
}

TEST(ReplyMeter, CompletionStreamWithoutUsageCountsItsEvents) {
  LoadRecord record;
  ReplyMeter meter(record, true);
  ASSERT_TRUE(play(meter, {{1, R"({"choices":[{"index":0,"text":"a","finish_reason":null}]})"},
                           {2, R"({"choices":[{"index":0,"text":"","finish_reason":null}]})"},
                           {3, R"({"choices":[{"index":0,"text":"b","finish_reason":"length"}]})"}}));
  EXPECT_EQ(record.events, 3u);
  EXPECT_EQ(record.output_tokens, 3u);
  EXPECT_FALSE(record.usage || record.cached_known);
  EXPECT_EQ(meter.text(), "ab");
}

TEST(ReplyMeter, LlamaServersTimingsAndThoughts) {
  LoadRecord record;
  ReplyMeter meter(record, true);
  ASSERT_TRUE(play(
      meter, {{1, R"({"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]})"},
              {2, R"({"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]})"},
              {3, R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})"},
              {3, R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2},"timings":{"cache_n":7}})"}}));
  EXPECT_EQ(record.events, 1u);
  EXPECT_EQ(record.cached_tokens, 7u);
  EXPECT_TRUE(record.cached_known);
  EXPECT_EQ(meter.text(), "");
}

TEST(ReplyMeter, SaysWhatIsWrongWithAStream) {
  const auto error = [](const std::vector<Stamped>& events) {
    LoadRecord record;
    ReplyMeter meter(record, true);
    const Status status = play(meter, events);
    return status ? std::string() : status.error().message;
  };
  const char* token = R"({"choices":[{"index":0,"text":"a","finish_reason":null}]})";
  EXPECT_EQ(error({{1, R"({"error":{"message":"out of\nblocks","code":500}})"}, {1, "[DONE]"}}),
            "the stream reports: out of\\x0ablocks");
  EXPECT_NE(error({{1, token}}).find("without finish_reason"), std::string::npos);
  EXPECT_NE(error({{1, R"({"choices":[]})"}}).find("before its first token"), std::string::npos);
  EXPECT_NE(error({{1, "{\"choices"}}).find("no JSON"), std::string::npos);
  EXPECT_NE(error({{1, R"({"choices":[7]})"}}).find("choice"), std::string::npos);
}

TEST(ReplyMeter, WholeReply) {
  LoadRecord record;
  ReplyMeter meter(record, false);
  const std::string body = R"({"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},)"
                           R"("finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,)"
                           R"("prompt_tokens_details":null}})";
  ASSERT_TRUE(meter.take(body.substr(0, 30), 1));
  ASSERT_TRUE(meter.take(body.substr(30), 2));
  ASSERT_TRUE(meter.end(3));
  EXPECT_EQ(meter.text(), "Hi");
  EXPECT_EQ(record.events, 0u);
  EXPECT_EQ(record.output_tokens, 2u);
  EXPECT_FALSE(record.cached_known);
  LoadRecord other;
  ReplyMeter empty(other, false);
  EXPECT_FALSE(empty.end(1));
}

}  // namespace
}  // namespace kvarto
