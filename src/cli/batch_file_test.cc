#include "cli/batch_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/file.h"

namespace kvarto {
namespace {

class BatchFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "batch_file_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string output() const { return folder_ + "/out.jsonl"; }
  std::string partial() const { return output() + ".partial"; }
  BatchFile open(std::string_view identity = "same") const {
    Result<BatchFile> file = BatchFile::open(output(), identity, 3);
    EXPECT_TRUE(file) << file.error().message;
    return *std::move(file);
  }

  std::string folder_;
};

TEST_F(BatchFileTest, AnswersComeOutInInputOrder) {
  BatchFile file = open();
  ASSERT_TRUE(file.add(2, "c"));
  ASSERT_TRUE(file.add(0, "a"));
  ASSERT_TRUE(file.add(1, "b"));
  EXPECT_FALSE(std::filesystem::exists(output()));
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(*read_file(output()), "a\nb\nc\n");
  EXPECT_FALSE(std::filesystem::exists(partial()));
}

TEST_F(BatchFileTest, ASecondRunFindsWhatTheFirstDid) {
  ASSERT_TRUE(open().add(1, R"({"text":"line\nbreak"})"));
  BatchFile again = open();
  EXPECT_EQ(again.answers(), (std::map<size_t, std::string>{{1, R"({"text":"line\nbreak"})"}}));
  ASSERT_TRUE(again.add(0, "a"));
  ASSERT_TRUE(again.finish());
  EXPECT_EQ(*read_file(output()), "a\n{\"text\":\"line\\nbreak\"}\n");
}

TEST_F(BatchFileTest, ATornLastLineIsForgotten) {
  {
    BatchFile file = open();
    ASSERT_TRUE(file.add(0, "a"));
    ASSERT_TRUE(file.add(1, "b"));
  }
  std::filesystem::resize_file(partial(), std::filesystem::file_size(partial()) - 3);
  {
    BatchFile again = open();
    EXPECT_EQ(again.answers(), (std::map<size_t, std::string>{{0, "a"}}));
    ASSERT_TRUE(again.add(1, "second"));
  }
  EXPECT_EQ(open().answers(), (std::map<size_t, std::string>{{0, "a"}, {1, "second"}}));
}

TEST_F(BatchFileTest, ATornHeaderStartsAnew) {
  open();
  std::filesystem::resize_file(partial(), 5);
  ASSERT_TRUE(open().add(0, "a"));
  EXPECT_EQ(open().answers().size(), 1u);
}

TEST_F(BatchFileTest, AnotherRunsPartialFileIsRefusedAndKept) {
  ASSERT_TRUE(open().add(0, "a"));
  const Result<BatchFile> other = BatchFile::open(output(), "other", 3);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find(partial()), std::string::npos);
  EXPECT_EQ(open().answers().size(), 1u);
}

TEST_F(BatchFileTest, AForeignFileIsRefusedAndKept) {
  for (const std::string foreign : {"my notes", "my notes\n", "{}\n"}) {
    ASSERT_TRUE(write_file_atomically(partial(), foreign));
    EXPECT_FALSE(BatchFile::open(output(), "same", 3));
    EXPECT_EQ(*read_file(partial()), foreign);
  }
}

TEST_F(BatchFileTest, ALineBeyondTheInputIsRefused) {
  ASSERT_TRUE(open().add(2, "c"));
  EXPECT_FALSE(BatchFile::open(output(), "same", 2));
  EXPECT_TRUE(BatchFile::open(output(), "same", 3));
}

TEST_F(BatchFileTest, TwoRunsDoNotShareAFile) {
  BatchFile first = open();
  const Result<BatchFile> second = BatchFile::open(output(), "same", 3);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find("another run is writing"), std::string::npos) << second.error().message;
  ASSERT_TRUE(first.finish());
  EXPECT_TRUE(BatchFile::open(output(), "same", 3));
}

TEST_F(BatchFileTest, TheOutputIsARegularFileAndNotTheInput) {
  const std::string input = folder_ + "/in.jsonl", link = folder_ + "/link", dangling = folder_ + "/dangling";
  ASSERT_TRUE(write_file_atomically(input, "x"));
  std::filesystem::create_symlink("in.jsonl", link);
  std::filesystem::create_symlink("target.jsonl", dangling);
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& bad : {folder_, input, link, pipe, std::string("/dev/null"), folder_ + "/none/out"}) {
    EXPECT_FALSE(output_path(bad, input)) << bad;
  }
  const auto canonical = [&](const char* name) { return std::filesystem::canonical(folder_).string() + "/" + name; };
  EXPECT_EQ(*output_path(output(), input), canonical("out.jsonl"));
  EXPECT_EQ(*output_path(link, output()), canonical("in.jsonl"));
  EXPECT_EQ(*output_path(dangling, input), canonical("target.jsonl"));
  EXPECT_EQ(*output_path("-", input), "-");
}

TEST_F(BatchFileTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_FALSE(BatchFile::open(folder_ + "/none/out.jsonl", "same", 3));
}

}  // namespace
}  // namespace kvarto
