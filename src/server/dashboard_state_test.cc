#include "server/dashboard_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using State = BlockCell::State;

Json shown(const DashboardState& state) { return Json::parse(dashboard_state(state)); }

TEST(DashboardState, SeriesAreThoseOfTheText) {
  const Json json = shown({.scrape = 17, .metrics_text = R"(# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a,\"b\" {c}"} 3.0
kvarto:kv_blocks{engine="0",group="0",kind="full",model_name="m",state="active"} 12.0
kvarto:kv_blocks{engine="0",group="1",kind="window",model_name="m",state="open"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.25
process_resident_memory_bytes 1.34217728e+08
odd +Inf
odder NaN
)"});
  EXPECT_EQ(json["scrape"], 17);
  const Json expected = {{"vllm:num_requests_running", 3.0},
                         {R"(kvarto:kv_blocks{group="0",kind="full",state="active"})", 12.0},
                         {R"(kvarto:kv_blocks{group="1",kind="window",state="open"})", 1.0},
                         {"vllm:time_to_first_token_seconds_count", 5.0},
                         {"vllm:time_to_first_token_seconds_sum", 1.25},
                         {"process_resident_memory_bytes", 134217728.0}};
  EXPECT_EQ(json["series"], expected);
}

TEST(DashboardState, ACharacterPerBlock) {
  const std::vector<BlockCell> blocks = {
      {},
      {.state = State::open, .group = 0, .references = 1},
      {.state = State::active, .named = true, .group = 1, .references = 12},
      {.state = State::active, .group = 40, .references = 2},
      {.state = State::cached, .named = true, .group = 10, .idle_us = 5'000'000},
  };
  const Json map = shown({.blocks = blocks})["blocks"];
  EXPECT_EQ(map["total"], 5);
  EXPECT_EQ(map["stride"], 1);
  EXPECT_EQ(map["states"], ".oAaC");
  EXPECT_EQ(map["groups"], ".01+a");
  EXPECT_EQ(map["sharing"], "01920");
  EXPECT_EQ(map["heat"], ".9996");  // 4 to 8 seconds: three doublings
}

TEST(DashboardState, HeatHalvesWithEachDoubling) {
  const auto heat = [](uint64_t seconds) {
    return block_heat({.state = State::cached, .idle_us = seconds * 1'000'000});
  };
  EXPECT_EQ(block_heat({.state = State::cached, .idle_us = 999'999}), '9');
  EXPECT_EQ(heat(1), '8');
  EXPECT_EQ(heat(2), '7');
  EXPECT_EQ(heat(3), '7');
  EXPECT_EQ(heat(255), '1');
  EXPECT_EQ(heat(256), '0');
  EXPECT_EQ(heat(1'000'000), '0');
  EXPECT_EQ(block_heat({}), '.');
}

TEST(DashboardState, LargeArenasShareSquares) {
  std::vector<BlockCell> blocks(25'001);
  blocks[2] = {.state = State::cached, .group = 0};
  blocks[4] = {.state = State::cached, .group = 0};
  blocks[5] = {.state = State::active, .group = 0, .references = 1};
  blocks[25'000] = {.state = State::open, .group = 0, .references = 1};
  const Json map = shown({.blocks = blocks})["blocks"];
  EXPECT_EQ(map["total"], 25'001);
  EXPECT_EQ(map["stride"], 3);
  const std::string states = map["states"];
  EXPECT_EQ(states.size(), 8334u);
  EXPECT_EQ(states.substr(0, 3), "ca.");
  EXPECT_EQ(states.back(), 'o');
  EXPECT_LE(shown({.blocks = std::vector<BlockCell>(kMostMapCells)})["blocks"]["stride"], 1);
}

TEST(DashboardState, RowsAndWhatIsNotKnown) {
  DashboardState state{.now_us = 9'000'000};
  state.requests = {{.id = "a", .state = RowState::waiting, .arrival_us = 8'500'000, .prompt_tokens = 10},
                    {.id = "b",
                     .state = RowState::length,
                     .arrival_us = 1'000'000,
                     .end_us = 3'000'000,
                     .prompt_tokens = 20,
                     .output_tokens = 4,
                     .cached_tokens = 16,
                     .miss_reason = MissReason::shorter_than_block,
                     .ttft_ms = 12.5,
                     .tpot_ms = 2.0}};
  state.ttft_ms = {.count = 1, .p50 = 12.5, .p95 = 12.5, .p99 = 12.5};
  const Json json = shown(state);
  EXPECT_EQ(json["requests"][0].dump(),
            R"({"id":"a","state":"waiting","ended":false,"seconds":0.5,"prompt":10,"cached":null,"output":0,)"
            R"("ttft_ms":null,"tpot_ms":null,"miss_reason":null})");
  EXPECT_EQ(json["requests"][1].dump(),
            R"({"id":"b","state":"length","ended":true,"seconds":2.0,"prompt":20,"cached":16,"output":4,)"
            R"("ttft_ms":12.5,"tpot_ms":2.0,"miss_reason":"shorter_than_block"})");
  EXPECT_EQ(json["latency"]["ttft_ms"].dump(), R"({"count":1,"p50":12.5,"p95":12.5,"p99":12.5})");
  EXPECT_EQ(json["latency"]["tpot_ms"].dump(), R"({"count":0,"p50":null,"p95":null,"p99":null})");
}

TEST(DashboardState, PlanAndGroups) {
  DashboardState state;
  KvGroup group;
  group.kind = GroupKind::window;
  group.window = 512;
  group.layers.resize(3);
  group.block_bytes = 4096;
  state.groups = std::span(&group, 1);
  state.plan.lines = {{"weights", 100, "as the file has them"}, {"kv_arena", 50, ""}};
  state.plan.total_bytes = 150;
  state.plan.available_bytes = 400;
  state.plan.kv_tokens = 7;
  state.plan.full_requests = 2;
  const Json json = shown(state);
  EXPECT_EQ(json["groups"].dump(), R"([{"kind":"window","window":512,"layers":3,"block_bytes":4096}])");
  EXPECT_EQ(json["plan"].dump(),
            R"({"lines":[{"name":"weights","bytes":100,"reason":"as the file has them"},)"
            R"({"name":"kv_arena","bytes":50,"reason":""}],"total_bytes":150,"available_bytes":400,)"
            R"("kv_tokens":7,"full_requests":2})");
}

TEST(DashboardState, TextOfBreakersOnlyWhereItMayBeShown) {
  DashboardState state;
  state.near_misses = 5;
  state.breakers = {{.place = PromptPlace::message,
                     .role = "system",
                     .index = 0,
                     .count = 3,
                     .lost_tokens = 900,
                     .position = 33,
                     .line_bytes = 20,
                     .part_begin = 10,
                     .hash = "0123456789ab",
                     .line = "Today is 2026-11-30.",
                     .earlier_line = "Today is 2026-11-29.",
                     .known_piece = "29",
                     .rule = "move ^Today"}};
  const std::string hidden = dashboard_state(state);
  for (const char* text : {"Today", "\"29\"", "move"}) EXPECT_EQ(hidden.find(text), std::string::npos) << text;
  EXPECT_EQ(Json::parse(hidden)["breakers"][0].dump(),
            R"({"place":"message","role":"system","index":0,"count":3,"lost_tokens":900,"position":33,"part_begin":10,)"
            R"("line_bytes":20,"hash":"0123456789ab"})");
  EXPECT_EQ(Json::parse(hidden)["near_misses"], 5);
  state.show_text = true;
  state.breakers[0].known_piece = "\xff";  // half a character
  EXPECT_EQ(shown(state)["breakers"][0]["text"].dump(),
            "{\"line\":\"Today is 2026-11-30.\",\"earlier\":\"Today is "
            "2026-11-29.\",\"known\":\"\xef\xbf\xbd\",\"rule\":\"move ^Today\"}");
}

}  // namespace
}  // namespace kvarto
