#include "eval/texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "format/gguf.h"

namespace kvarto {
namespace {

std::shared_ptr<const Tokenizer> tokenizer(const std::string& model) {
  const auto file = GgufFile::open(KVARTO_SOURCE_DIR "/tests/tiny/" + model + ".gguf").value();
  return Tokenizer::from_gguf(*file).value();
}

// Every byte is a token of its own, since no merge joins digits and dots.
std::string numbers(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += static_cast<char>('0' + i * 7 % 10);
  return text;
}

class TextsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "texts_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& content) const {
    EXPECT_TRUE(write_file_atomically(folder_ + "/" + name, content));
    return folder_ + "/" + name;
  }

  std::string folder_;
};

TEST_F(TextsTest, FilesAreReadInTheirOrder) {
  const std::vector<std::string> paths = {write("b.txt", "second"), write("a.txt", "f\xC3\xBCrst")};
  const auto files = read_texts(paths).value();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "b.txt");
  EXPECT_EQ(files[1].content, "f\xC3\xBCrst");
}

TEST_F(TextsTest, LicencesWithoutFiles) {
  write("Artistic", "arts");
  write("GPL-3", "general");
  write("BSD", "not among them");
  const auto files = read_texts({}, folder_).value();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "GPL-3");
  EXPECT_EQ(files[1].content, "arts");
}

TEST_F(TextsTest, ErrorsNameTheFileAndTheRemedy) {
  const std::vector<std::string> latin1 = {write("latin1.txt", "caf\xe9")}, missing = {folder_ + "/none.txt"};
  EXPECT_NE(read_texts(latin1).error().message.find("latin1.txt: not valid UTF-8 at byte 3; convert"),
            std::string::npos);
  EXPECT_NE(read_texts(missing).error().message.find("none.txt: cannot open"), std::string::npos);
  const std::string none = read_texts({}, folder_ + "/nowhere").error().message;
  EXPECT_NE(none.find("nowhere"), std::string::npos) << none;
  EXPECT_NE(none.find("--text FILE"), std::string::npos) << none;
}

TEST_F(TextsTest, FilesTakeTurns) {
  const auto words = tokenizer("tiny_llama");
  const std::vector<TextFile> files = {{.name = "long", .content = numbers(350)},
                                       {.name = "short", .content = numbers(70)},
                                       {.name = "other", .content = "x" + numbers(230)}};
  const std::vector<TokenId> all = words->encode(files[0].content).value();
  ASSERT_GT(all.size(), 300u);
  const TextPieces pieces = cut_texts(files, *words, 100, 6).value();
  std::vector<std::string> names;
  for (const EvalText& text : pieces.texts) names.push_back(text.name);
  EXPECT_EQ(names, (std::vector<std::string>{"long #1", "short #1", "other #1", "long #2", "other #2", "long #3"}));
  ASSERT_EQ(pieces.facts.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(pieces.texts[i].ids.size(), i == 1 ? 70u : 100u) << names[i];
    EXPECT_EQ(pieces.facts[i].tokens, pieces.texts[i].ids.size());
    EXPECT_EQ(pieces.facts[i].name, names[i]);
    EXPECT_EQ(pieces.facts[i].sha256.size(), 64u);
  }
  EXPECT_TRUE(std::equal(all.begin() + 100, all.begin() + 200, pieces.texts[3].ids.begin()));
  EXPECT_NE(pieces.facts[0].sha256, pieces.facts[2].sha256);
  EXPECT_EQ(cut_texts(files, *words, 100, 2)->texts.size(), 2u);
  EXPECT_EQ(cut_texts(files, *words, 100, 99)->texts.size(), 6u);  // there are no more
}

// SHA-256 of "0741852963" ten times over, by sha256sum.
TEST_F(TextsTest, ATextIsKnownByItsBytes) {
  const auto words = tokenizer("tiny_llama");
  const std::vector<TextFile> files = {{.name = "n", .content = numbers(100)}};
  const TextPieces pieces = cut_texts(files, *words, 500, 1).value();
  EXPECT_EQ(pieces.facts.at(0).sha256, "cb0795103ac1e3b9d07f5db8b372aa3f0bf38c4f42af3041f04cbe4b0f4db703");
}

TEST_F(TextsTest, EachPieceBeginsWithTheModelsBos) {
  const auto words = tokenizer("tiny_llama3");
  ASSERT_TRUE(words->wants_bos());
  const std::vector<TextFile> files = {{.name = "n", .content = "<|endoftext|>" + numbers(300)}};
  const TextPieces pieces = cut_texts(files, *words, 100, 2).value();
  ASSERT_EQ(pieces.texts.size(), 2u);
  for (const EvalText& text : pieces.texts) {
    EXPECT_EQ(text.ids.size(), 100u);
    EXPECT_EQ(text.ids[0], *words->vocabulary().bos);
    EXPECT_EQ(std::ranges::count(text.ids, *words->vocabulary().bos), 1);  // what looks like one is text
  }
}

TEST_F(TextsTest, AFileThatIsTooShortIsRefusedByName) {
  const auto words = tokenizer("tiny_llama");
  const auto cut = [&](size_t length) {
    const std::vector<TextFile> files = {{.name = "note.txt", .content = numbers(length)}};
    return cut_texts(files, *words, 100, 1);
  };
  EXPECT_NE(cut(63).error().message.find("note.txt has 63 tokens, and a text needs 64"), std::string::npos);
  EXPECT_TRUE(cut(64));
}

}  // namespace
}  // namespace kvarto
