#include "format/gguf_split.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/gguf_builder.h"

namespace kvarto {
namespace {

using B = GgufBuilder;

// A folder of its own, removed at the end.
class GgufSplit : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / (std::string("kvarto_split_") + info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& file) const { return (folder_ / file).string(); }

  void write(const std::string& file, const GgufBuilder& builder) const {
    ASSERT_TRUE(write_file_atomically(path(file), builder.build()));
  }

  static GgufBuilder part(uint16_t number, uint16_t count, int32_t total) {
    GgufBuilder file;
    file.scalar("split.no", B::kU16, number).scalar("split.count", B::kU16, count);
    file.scalar("split.tensors.count", B::kI32, total);
    if (number == 0) file.string("general.architecture", "llama").scalar("llama.block_count", B::kU32, 2u);
    return file;
  }

  // Three parts; the first has keys only, as some splitters write it.
  void write_three() const {
    write("m-00001-of-00003.gguf", part(0, 3, 3));
    write("m-00002-of-00003.gguf", part(1, 3, 3).tensor("a", {2}, 0, "aaaaaaaa").tensor("b", {2}, 0, "bbbbbbbb"));
    write("m-00003-of-00003.gguf", part(2, 3, 3).tensor("c", {2}, 0, "cccccccc"));
  }

  std::string error_of(const std::string& file) const {
    const auto opened = GgufFile::open(path(file));
    return opened ? "opened" : opened.error().message;
  }

  std::filesystem::path folder_;
};

TEST_F(GgufSplit, AnyPartOpensAll) {
  write_three();
  std::string fingerprint;
  for (const char* named : {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    const auto opened = GgufFile::open(path(named));
    ASSERT_TRUE(opened) << opened.error().message;
    const GgufFile& file = **opened;
    EXPECT_EQ(file.name(), path(named));
    EXPECT_EQ(file.get_string("general.architecture"), "llama");
    EXPECT_EQ(file.get_uint("llama.block_count"), 2u);
    ASSERT_EQ(file.tensors().size(), 3u);
    for (const char* name : {"a", "b", "c"}) {
      const GgufTensor* tensor = file.find_tensor(name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(as_text(tensor->bytes), std::string(8, name[0]));
      file.release(*tensor);
      EXPECT_EQ(as_text(tensor->bytes), std::string(8, name[0]));
    }
    EXPECT_TRUE(fingerprint.empty() || fingerprint == file.fingerprint());
    fingerprint = file.fingerprint();
  }
  // The same model in one file has the same fingerprint.
  GgufBuilder whole;
  whole.string("general.architecture", "llama").scalar("llama.block_count", B::kU32, 2u);
  write("whole.gguf",
        whole.tensor("c", {2}, 0, "cccccccc").tensor("b", {2}, 0, "bbbbbbbb").tensor("a", {2}, 0, "aaaaaaaa"));
  EXPECT_EQ((*GgufFile::open(path("whole.gguf")))->fingerprint(), fingerprint);
}

TEST_F(GgufSplit, AMissingPartIsNamed) {
  for (const std::string missing : {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    write_three();
    std::filesystem::remove(path(missing));
    for (const std::string named : {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"}) {
      if (named == missing) continue;
      const auto opened = GgufFile::open(path(named));
      ASSERT_FALSE(opened);
      EXPECT_EQ(opened.error().code, ErrorCode::not_found);
      EXPECT_TRUE(opened.error().message.starts_with(path(missing) + ": missing part " + missing[6] + " of 3"))
          << opened.error().message;
      EXPECT_NE(opened.error().message.find(path(named)), std::string::npos) << opened.error().message;
    }
  }
}

TEST_F(GgufSplit, APartUnderAnotherNameSaysHowToNameIt) {
  write("second.gguf", part(1, 3, 3).tensor("a", {2}, 0, "aaaaaaaa"));
  EXPECT_NE(error_of("second.gguf").find("part 2 of 3 of a split model: name it NAME-00002-of-00003.gguf"),
            std::string::npos)
      << error_of("second.gguf");
}

TEST_F(GgufSplit, PartsThatDoNotFitTogether) {
  write_three();
  write("m-00002-of-00003.gguf", part(2, 3, 3).tensor("a", {2}, 0, "aaaaaaaa"));  // number 3 under the name of 2
  EXPECT_NE(error_of("m-00001-of-00003.gguf").find("m-00002-of-00003.gguf: keys split.no 2"), std::string::npos)
      << error_of("m-00001-of-00003.gguf");

  write_three();
  write("m-00002-of-00003.gguf", GgufBuilder().tensor("a", {2}, 0, "aaaaaaaa"));  // no part at all
  EXPECT_NE(error_of("m-00003-of-00003.gguf").find("m-00002-of-00003.gguf: has no keys"), std::string::npos);

  write_three();
  write("m-00003-of-00003.gguf", part(2, 3, 3).tensor("a", {2}, 0, "aaaaaaaa"));
  EXPECT_NE(error_of("m-00001-of-00003.gguf").find("tensor \"a\" is in two parts"), std::string::npos);

  write_three();
  write("m-00003-of-00003.gguf", part(2, 3, 3));
  EXPECT_NE(error_of("m-00001-of-00003.gguf").find("\"split.tensors.count\" is 3, but the parts hold 2"),
            std::string::npos);

  write_three();
  write("m-00002-of-00003.gguf", part(1, 3, 3).tensor("a", {2}, 999, "aaaaaaaa"));
  EXPECT_NE(error_of("m-00001-of-00003.gguf").find("m-00002-of-00003.gguf: tensor \"a\": tensor type 999"),
            std::string::npos);
}

TEST_F(GgufSplit, AbsurdCountsEndAtTheFirstMissingPart) {
  write("m-00001-of-65535.gguf", part(0, 65535, 1));
  EXPECT_TRUE(
      error_of("m-00001-of-65535.gguf").starts_with(path("m-00002-of-65535.gguf") + ": missing part 2 of 65535"));
  GgufBuilder odd;
  write("m-00001-of-00002.gguf", odd.string("split.count", "two"));
  EXPECT_NE(error_of("m-00001-of-00002.gguf").find("\"split.count\" is string two"), std::string::npos)
      << error_of("m-00001-of-00002.gguf");
}

TEST_F(GgufSplit, OnePartOfOneIsAPlainFile) {
  write("single.gguf", part(0, 1, 1).tensor("a", {2}, 0, "aaaaaaaa"));
  EXPECT_TRUE(GgufFile::open(path("single.gguf")));
}

TEST_F(GgufSplit, FilesThatAreNotThere) {
  const auto opened = GgufFile::open(path("nothing.gguf"));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::not_found);
  EXPECT_NE(opened.error().message.find("nothing.gguf"), std::string::npos);
  EXPECT_FALSE(GgufFile::open(folder_.string()));
  ASSERT_TRUE(write_file_atomically(path("empty.gguf"), ""));
  EXPECT_NE(error_of("empty.gguf").find("ends at byte 0"), std::string::npos);
}

TEST(GgufPartNames, ReadAndWritten) {
  const auto name = read_part_name("/a/b-00002-of-00010.gguf");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->stem, "/a/b");
  EXPECT_EQ(name->number, 2u);
  EXPECT_EQ(name->count, 10u);
  EXPECT_EQ(part_path(*name), "/a/b-00002-of-00010.gguf");
  for (const char* other :
       {"", "a.gguf", "-00001-of-00002.gguf", "a-0001-of-0002.gguf", "a-00003-of-00002.gguf", "a-00000-of-00002.gguf",
        "a-00001-of-00002.bin", "a-00001_of-00002.gguf", "a-0000x-of-00002.gguf"}) {
    EXPECT_FALSE(read_part_name(other)) << other;
  }
}

}  // namespace
}  // namespace kvarto
