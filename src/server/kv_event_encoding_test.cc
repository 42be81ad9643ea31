// Batches byte for byte: one worked out by hand, and those that msgspec encoded (tools/make_kv_event_golden.py).
#include "server/kv_event_encoding.h"

#include <gtest/gtest.h>

#include <map>

#include "base/hash.h"
#include "tests/support/golden.h"

namespace kvarto {
namespace {

using nlohmann::json;

std::string hex(std::string_view bytes) {
  return to_hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

BlockHash hash_from(const std::string& digits) {
  BlockHash hash;
  for (size_t i = 0; i < hash.size(); ++i) {
    hash[i] = static_cast<uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  }
  return hash;
}

KvEvent event_from(const json& row) {
  const std::map<std::string, KvEvent::Kind> kinds = {
      {"stored", KvEvent::Kind::stored}, {"removed", KvEvent::Kind::removed}, {"cleared", KvEvent::Kind::cleared}};
  const std::map<std::string, GroupKind> groups = {{"full", GroupKind::full},
                                                   {"window", GroupKind::window},
                                                   {"latent", GroupKind::latent},
                                                   {"state", GroupKind::state}};
  KvEvent event{.kind = kinds.at(row["kind"])};
  event.group = row.value("group", 0u);
  for (const std::string digits : row.value("hashes", json::array())) event.hashes.push_back(hash_from(digits));
  if (event.kind != KvEvent::Kind::stored) return event;
  if (!row["parent"].is_null()) event.parent = hash_from(row["parent"]);
  event.tokens = row["tokens"].get<std::vector<TokenId>>();
  event.cache_salt = row["salt"];
  event.block_tokens = row["block_tokens"];
  event.group_kind = groups.at(row["group_kind"]);
  event.window = row["window"];
  return event;
}

// Quoted text stands for itself, the rest is hexadecimal; spaces part them.
std::string bytes_of(std::string_view notation) {
  std::string out;
  for (size_t i = 0; i < notation.size();) {
    if (notation[i] == ' ') {
      ++i;
    } else if (notation[i] == '"') {
      const size_t end = notation.find('"', i + 1);
      out.append(notation.substr(i + 1, end - i - 1));
      i = end + 1;
    } else {
      out.push_back(static_cast<char>(std::stoul(std::string(notation.substr(i, 2)), nullptr, 16)));
      i += 2;
    }
  }
  return out;
}

std::vector<KvEvent> one_of_each() {
  BlockHash seven{};
  seven[31] = 7;
  return {{.kind = KvEvent::Kind::stored, .hashes = {seven}, .tokens = {1, 2}, .block_tokens = 2},
          {.kind = KvEvent::Kind::removed, .hashes = {seven}},
          {.kind = KvEvent::Kind::cleared}};
}

TEST(KvEventEncoding, TheExampleOfTheMapForm) {
  const std::string expected = bytes_of(
      "93 cb 3ff8000000000000 93"
      " 8b a4 \"type\" ab \"BlockStored\" ac \"block_hashes\" 91 07 b1 \"parent_block_hash\" c0 a9 \"token_ids\" 92 01 "
      "02"
      " aa \"block_size\" 02 a7 \"lora_id\" c0 a6 \"medium\" a3 \"GPU\" a9 \"lora_name\" c0 aa \"extra_keys\" 91 c0"
      " a9 \"group_idx\" 00 b2 \"kv_cache_spec_kind\" ae \"full_attention\""
      " 84 a4 \"type\" ac \"BlockRemoved\" ac \"block_hashes\" 91 07 a6 \"medium\" a3 \"GPU\" a9 \"group_idx\" 00"
      " 81 a4 \"type\" b0 \"AllBlocksCleared\""
      " 00");
  EXPECT_EQ(hex(encode_kv_events(one_of_each(), {}, 1.5, 0)), hex(expected));
}

TEST(KvEventEncoding, TheExampleOfTheArrayForm) {
  const std::string expected = bytes_of(
      "93 cb 3ff8000000000000 93"
      " 97 ab \"BlockStored\" 91 07 c0 92 01 02 02 c0 a3 \"GPU\""
      " 93 ac \"BlockRemoved\" 91 07 a3 \"GPU\""
      " 91 b0 \"AllBlocksCleared\""
      " 00");
  EXPECT_EQ(hex(encode_kv_events(one_of_each(), {.array_encoding = true}, 1.5, 0)), hex(expected));
}

TEST(KvEventEncoding, AgreesWithMsgspec) {
  const json batches = testing::read_json(testing::source_path("tests/golden/kv_events.json"))["batches"];
  ASSERT_GE(batches.size(), 20u);
  for (const json& batch : batches) {
    std::vector<KvEvent> events;
    for (const json& row : batch["events"]) events.push_back(event_from(row));
    const KvEventForm form{.array_encoding = batch["array_encoding"], .full_hashes = batch["full_hashes"]};
    EXPECT_EQ(hex(encode_kv_events(events, form, batch["ts"], batch["rank"])), batch["hex"])
        << batch["name"] << (form.array_encoding ? ", arrays" : ", maps");
  }
}

}  // namespace
}  // namespace kvarto
