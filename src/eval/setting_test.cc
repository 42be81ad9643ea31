#include "eval/setting.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

std::string refusal(std::string_view text) {
  const Result<Setting> setting = parse_setting(text);
  if (setting) return "";
  EXPECT_EQ(setting.error().code, ErrorCode::invalid_argument);
  return setting.error().message;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Setting, DtypesOfKeysAndValues) {
  const Setting both = parse_setting("kv=bf16").value();
  EXPECT_EQ(both.name, "kv=bf16");
  EXPECT_EQ(both.k_dtype, KvDtype::bf16);
  EXPECT_EQ(both.v_dtype, KvDtype::bf16);
  EXPECT_FALSE(both.fault.any());
  const Setting each = parse_setting("k=float32:v=f16").value();
  EXPECT_EQ(each.k_dtype, KvDtype::f32);
  EXPECT_EQ(each.v_dtype, KvDtype::f16);
  const Setting one = parse_setting("v=bfloat16").value();
  EXPECT_EQ(one.k_dtype, std::nullopt);
  EXPECT_EQ(one.v_dtype, KvDtype::bf16);
  EXPECT_EQ(parse_setting("kv=auto").value().k_dtype, std::nullopt);
}

TEST(Setting, Faults) {
  const Setting all = parse_setting("kv=f16:noise=-7.5:hide=0.25").value();
  EXPECT_EQ(all.fault.key_noise_db, -7.5);
  EXPECT_EQ(all.fault.hidden_share, 0.25);
  EXPECT_TRUE(all.fault.any());
  EXPECT_TRUE(parse_setting("noise=200").value().fault.any());
  EXPECT_TRUE(parse_setting("noise=0").value().fault.any());  // as much noise as there is signal
  EXPECT_FALSE(parse_setting("hide=0").value().fault.any());
  EXPECT_EQ(parse_setting("hide=1e-3").value().fault.hidden_share, 0.001);
}

TEST(Setting, RefusalsNameThePart) {
  EXPECT_TRUE(has(refusal("k=f16:v=fp9"), "part \"v=fp9\" of setting \"k=f16:v=fp9\": KV dtype \"fp9\" is not known"));
  for (const char* text : {"", "kv", "=f16", "kv:f16", "k=f16:", "quality=1", "KV=f16", " kv=f16"}) {
    EXPECT_TRUE(has(refusal(text), "kv=DTYPE, k=DTYPE, v=DTYPE, noise=DB, hide=SHARE")) << text;
  }
  for (const char* text : {"kv=f16:k=f16", "k=f16:k=bf16", "v=f16:kv=f16", "noise=3:noise=4", "hide=0:hide=0"}) {
    EXPECT_TRUE(has(refusal(text), "set that already")) << text;
  }
  for (const char* text : {"noise=", "noise=ten", "noise=10dB", "hide= 0.5", "hide=0.5 "}) {
    EXPECT_TRUE(has(refusal(text), "is no number")) << text;
  }
  for (const char* text : {"noise=-20.1", "noise=201", "noise=nan", "noise=inf"}) {
    EXPECT_TRUE(has(refusal(text), "[-20, 200] dB")) << text;
  }
  for (const char* text : {"hide=1", "hide=-0.1", "hide=nan"}) EXPECT_TRUE(has(refusal(text), "[0, 1)")) << text;
}

TEST(Setting, Lists) {
  const std::vector<Setting> settings = parse_settings("kv=f16,k=f16:v=bf16,noise=40").value();
  ASSERT_EQ(settings.size(), 3u);
  EXPECT_EQ(settings[0].name, "kv=f16");
  EXPECT_EQ(settings[1].v_dtype, KvDtype::bf16);
  EXPECT_EQ(settings[2].fault.key_noise_db, 40);
  EXPECT_TRUE(has(parse_settings("kv=f16,kv=bf16,kv=f16").error().message, "\"kv=f16\" is there twice"));
  EXPECT_FALSE(parse_settings(""));
  EXPECT_FALSE(parse_settings("kv=f16,"));
  EXPECT_FALSE(parse_settings("kv=f16,kv=fp9"));
}

TEST(Setting, KeysAndValuesAloneBesideEachOtherAreRefused) {
  for (const char* text : {"k=f16,v=bf16", "v=bf16,k=f16", "kv=f16,k=f16,v=bf16"}) {
    const Result<std::vector<Setting>> settings = parse_settings(text);
    ASSERT_FALSE(settings) << text;
    EXPECT_EQ(settings.error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(has(settings.error().message, "join them by ':'")) << settings.error().message;
    EXPECT_TRUE(has(settings.error().message, "--candidate of its own")) << settings.error().message;
  }
  EXPECT_TRUE(has(parse_settings("k=f16,v=bf16").error().message, "\"k=f16,v=bf16\" are two settings"));
  EXPECT_TRUE(has(parse_settings("k=f16,v=bf16").error().message, "(k=f16:v=bf16)"));
  EXPECT_EQ(parse_settings("k=f16,k=bf16").value().size(), 2u);
  EXPECT_EQ(parse_settings("k=f16,kv=bf16,v=bf16").value().size(), 3u);
  EXPECT_EQ(parse_settings("k=f16:noise=40,v=bf16").value().size(), 2u);
}

}  // namespace
}  // namespace kvarto
