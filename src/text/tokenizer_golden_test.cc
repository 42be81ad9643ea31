// The six tokenizer goldens: real vocabularies, ids made by other implementations (tokenizers, sentencepiece,
// tiktoken).
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace kvarto {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<TokenId>;

const std::string kModels = KVARTO_SOURCE_DIR "/models/";

Json read_json(const std::string& path) {
  const auto text = read_file(path);
  EXPECT_TRUE(text.has_value()) << path;
  return Json::parse(*text);
}

// A file of tools/fetch_tokenizers.
Vocabulary read_vocabulary(const std::string& path) {
  const Json json = read_json(path);
  Vocabulary v;
  v.model = json["model"];
  v.pre = json["pre"];
  v.tokens = json["tokens"].get<std::vector<std::string>>();
  for (int kind : json["kinds"]) v.kinds.push_back(static_cast<TokenKind>(kind));
  v.scores = json.value("scores", std::vector<float>());
  v.merges = json.value("merges", std::vector<std::string>());
  v.bos = json["bos"].get<TokenId>();
  v.eos = json["eos"].get<TokenId>();
  if (json.contains("unk")) v.unk = json["unk"].get<TokenId>();
  return v;
}

struct Source {
  std::string name;    // of the golden file
  std::string file;    // under models/
  std::string remedy;  // how to get it
  bool all_plain;      // the golden treats special tokens as text
  TokenId bos;         // expected first id with add_bos; -1: none
  Ids stops;
};

void PrintTo(const Source& source, std::ostream* out) { *out << source.name; }

class TokenizerGolden : public testing::TestWithParam<Source> {};

TEST_P(TokenizerGolden, EveryStringEncodesExactly) {
  const Source& source = GetParam();
  const std::string path = kModels + source.file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "models/" << source.file << " is absent; " << source.remedy;
  Result<std::shared_ptr<const Tokenizer>> made = fail(ErrorCode::internal, "");
  if (path.ends_with(".gguf")) {
    const auto file = GgufFile::open(path);
    ASSERT_TRUE(file.has_value()) << file.error().message;
    made = Tokenizer::from_gguf(**file);
  } else {
    made = Tokenizer::from_vocabulary(read_vocabulary(path));
  }
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const Tokenizer& tokenizer = **made;
  EXPECT_TRUE(tokenizer.warnings().empty()) << tokenizer.warnings().front();
  EXPECT_EQ(tokenizer.stop_ids(), source.stops);

  const Json golden = read_json(KVARTO_SOURCE_DIR "/tests/golden/tokenizer_" + source.name + ".json");
  ASSERT_EQ(golden["cases"].size(), 100u);
  for (const Json& c : golden["cases"]) {
    const std::string text = c["text"];
    const std::string shown = c["text"].dump(-1, ' ', true);
    const Ids ids = c["ids"];
    const auto parsed = tokenizer.encode(text, {.parse_special = !source.all_plain});
    const auto plain = tokenizer.encode(text, {.parse_special = false});
    ASSERT_TRUE(parsed.has_value() && plain.has_value()) << shown;
    if (c.contains("hf_bpe_ids") && *parsed != ids) {
      EXPECT_EQ(*parsed, c["hf_bpe_ids"].get<Ids>()) << shown;
    } else {
      EXPECT_EQ(*parsed, ids) << shown;
      EXPECT_EQ(*plain, c.contains("ids_plain") ? c["ids_plain"].get<Ids>() : ids) << shown;
    }
    if (c.value("roundtrip", true)) {
      const std::string want = c.value("nfc", false) ? *to_nfc(text) : text;
      EXPECT_EQ(tokenizer.decode(*parsed, true), want) << shown;
      EXPECT_EQ(tokenizer.decode(*plain), want) << shown;
    }
    Ids with_bos = *parsed;
    if (source.bos >= 0) with_bos.insert(with_bos.begin(), source.bos);
    EXPECT_EQ(*tokenizer.encode(text, {.parse_special = !source.all_plain, .add_bos = true}), with_bos) << shown;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerGolden,
    testing::Values(
        Source{"smollm2", "smollm2-135m-q4_1.gguf", "./run fetches it", false, -1, {0, 2}},
        Source{"qwen2", "tm05.gguf", "./test all fetches it", false, -1, {151643, 151645}},
        Source{"gemma3", "gemma3-270m-q4km.gguf", "./test all fetches it", false, 2, {1, 106}},
        Source{"deepseek", "tokenizers/deepseek.json", "tools/fetch_tokenizers fetches it", false, -1, {1}},
        Source{"tekken", "tokenizers/tekken.json", "tools/fetch_tokenizers fetches it", true, 1, {2}},
        Source{"mistral_spm", "tokenizers/mistral_spm.json", "tools/fetch_tokenizers fetches it", true, 1, {2}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvarto
