#include "server/recent_requests.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

RequestResult ended(FinishReason reason) {
  RequestResult result;
  result.samples.resize(1);
  result.samples[0].finish = reason;
  result.prompt_tokens = 100;
  result.cached_tokens = 64;
  result.completion_tokens = 5;
  result.miss_reason = MissReason::no_match;
  result.arrival_us = 1'100'000;
  result.first_scheduled_us = 1'200'000;
  result.first_token_us = 1'500'000;
  result.last_token_us = 1'900'000;
  result.tpot_ms = 100;
  return result;
}

TokenEvent token_at(uint64_t us) { return {.token = 1, .time_us = us}; }

TEST(RecentRequests, ARequestsLife) {
  RecentRequests requests;
  const auto live = requests.begin("chatcmpl-1", 100, 1, 1'000'000);
  requests.submitted(live, 7);
  RequestRow row = requests.rows(10).at(0);
  EXPECT_EQ(row.id, "chatcmpl-1");
  EXPECT_EQ(row_state_name(row.state), "waiting");
  EXPECT_EQ(row.prompt_tokens, 100u);
  EXPECT_FALSE(row.cached_tokens || row.miss_reason || row.ttft_ms || row.tpot_ms);

  const AdmittedRequest others[] = {{.request = 6, .hit_tokens = 1},
                                    {.request = 7, .hit_tokens = 64, .miss_reason = MissReason::evicted}};
  requests.admitted(others);
  row = requests.rows(10).at(0);
  EXPECT_EQ(row_state_name(row.state), "prefill");
  EXPECT_EQ(row.cached_tokens, 64u);
  EXPECT_EQ(row.miss_reason, MissReason::evicted);

  live->token(token_at(1'500'000));
  row = requests.rows(10).at(0);
  EXPECT_EQ(row_state_name(row.state), "decode");
  EXPECT_EQ(row.ttft_ms, 500.0);
  EXPECT_FALSE(row.tpot_ms);
  live->token(token_at(1'600'000));
  live->token(token_at(1'800'000));
  live->token({.finish = FinishReason::cancelled, .time_us = 1'900'000});  // no token
  row = requests.rows(10).at(0);
  EXPECT_EQ(row.output_tokens, 3u);
  EXPECT_EQ(row.tpot_ms, 150.0);
  EXPECT_EQ(row.end_us, 0u);

  requests.finished(live, ended(FinishReason::stop), 2'000'000);
  ASSERT_EQ(requests.rows(10).size(), 1u);
  row = requests.rows(10).at(0);
  EXPECT_EQ(row_state_name(row.state), "stop");
  EXPECT_EQ(row.output_tokens, 5u);
  EXPECT_EQ(row.ttft_ms, 500.0);  // from the arrival at the door
  EXPECT_EQ(row.tpot_ms, 100.0);
  EXPECT_EQ(row.miss_reason, MissReason::no_match);
  EXPECT_EQ(row.end_us, 2'000'000u);
}

// The engine may be done with a request before whoever submitted it has told its id.
TEST(RecentRequests, IdsOfTheEngineComeAndGoWithTheRequests) {
  RecentRequests requests;
  const auto early = requests.begin("early", 10, 1, 1), refused = requests.begin("refused", 10, 1, 1);
  requests.submitted(refused, 2);
  requests.refused(refused);
  requests.refused(refused);
  requests.finished(early, ended(FinishReason::stop), 5);
  requests.submitted(early, 1);
  requests.submitted(nullptr, 3);
  const AdmittedRequest gone[] = {{.request = 1}, {.request = 2}, {.request = 3}};
  requests.admitted(gone);
  ASSERT_EQ(requests.rows(10).size(), 1u);
  EXPECT_EQ(requests.rows(10).at(0).id, "early");
  const auto first = requests.begin("first", 10, 1, 1), second = requests.begin("second", 10, 1, 1);
  requests.submitted(first, 4);
  requests.submitted(second, 5);
  requests.finished(first, ended(FinishReason::stop), 6);
  const AdmittedRequest both[] = {{.request = 4, .hit_tokens = 40}, {.request = 5, .hit_tokens = 50}};
  requests.admitted(both);
  EXPECT_EQ(requests.rows(1).at(0).id, "second");
  EXPECT_EQ(requests.rows(1).at(0).cached_tokens, 50u);
}

TEST(RecentRequests, SamplesRunSideBySide) {
  RecentRequests requests;
  const auto live = requests.begin("a", 10, 2, 0);
  for (const uint64_t us : {1'000'000u, 1'000'000u, 1'300'000u, 1'300'000u}) live->token(token_at(us));
  EXPECT_EQ(requests.rows(1).at(0).tpot_ms, 300.0);
}

TEST(RecentRequests, HowTheyEnd) {
  RecentRequests requests;
  const auto state = [&](const RequestResult& result) {
    requests.finished(requests.begin("a", 1, 1, 1), result, 2);
    return row_state_name(requests.rows(1).at(0).state);
  };
  EXPECT_EQ(state(ended(FinishReason::length)), "length");
  EXPECT_EQ(state(ended(FinishReason::cancelled)), "aborted");
  EXPECT_EQ(state(ended(FinishReason::error)), "failed");
  RequestResult early;
  early.samples.resize(1);
  early.samples[0].finish = FinishReason::cancelled;
  EXPECT_EQ(state(early), "aborted");
  EXPECT_FALSE(requests.rows(1).at(0).cached_tokens || requests.rows(1).at(0).ttft_ms);
}

TEST(RecentRequests, LatestFirstAndBounded) {
  RecentRequests requests(3, 2);
  for (int i = 0; i < 5; ++i)
    requests.finished(requests.begin("ended" + std::to_string(i), 1, 1, 1), ended(FinishReason::stop), 2);
  const auto first = requests.begin("live0", 1, 1, 1), second = requests.begin("live1", 1, 1, 1);
  EXPECT_EQ(requests.begin("live2", 1, 1, 1), nullptr);
  std::string ids;
  for (const RequestRow& row : requests.rows(100)) ids += row.id + " ";
  EXPECT_EQ(ids, "live1 live0 ended4 ended3 ended2 ");
  EXPECT_EQ(requests.rows(1).size(), 1u);
  requests.refused(second);
  EXPECT_EQ(requests.rows(1).at(0).id, "live0");
  requests.finished(nullptr, ended(FinishReason::stop), 2);  // no row, but it counts
  EXPECT_EQ(requests.rows(100).size(), 3u);                  // live0 ended4 ended3
  EXPECT_EQ(requests.ttft_ms().count, 3u);
}

// Nearest rank, by hand: of 1 to 20, 95 % are 19 values.
TEST(Percentiles, ByNearestRank) {
  std::vector<double> values;
  for (int i = 20; i >= 1; --i) values.push_back(i);
  const Percentiles of20 = percentiles(values);
  EXPECT_EQ(of20.count, 20u);
  EXPECT_EQ(of20.p50, 10);
  EXPECT_EQ(of20.p95, 19);
  EXPECT_EQ(of20.p99, 20);
  const Percentiles of1 = percentiles({7});
  EXPECT_EQ(of1.p50, 7);
  EXPECT_EQ(of1.p99, 7);
  EXPECT_EQ(percentiles({}).count, 0u);
}

TEST(RecentRequests, PercentilesOfWhatHasThem) {
  RecentRequests requests;
  for (int i = 1; i <= 4; ++i) {
    RequestResult result = ended(FinishReason::stop);
    result.first_token_us = 1'000'000 + 100'000 * static_cast<uint64_t>(i);
    result.last_token_us = i == 4 ? result.first_token_us : 5'000'000;  // of one token
    result.tpot_ms = 10 * i;
    requests.finished(requests.begin("a", 1, 1, 1'000'000), result, 6'000'000);
  }
  EXPECT_EQ(requests.ttft_ms().count, 4u);
  EXPECT_EQ(requests.ttft_ms().p50, 200);
  EXPECT_EQ(requests.ttft_ms().p99, 400);
  EXPECT_EQ(requests.tpot_ms().count, 3u);
  EXPECT_EQ(requests.tpot_ms().p99, 30);
}

}  // namespace
}  // namespace kvarto
