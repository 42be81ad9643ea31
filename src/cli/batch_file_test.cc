#include "cli/batch_file.h"

#include <gtest/gtest.h>

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
    Result<BatchFile> file = BatchFile::open(output(), identity);
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
  BatchFile again = open();
  EXPECT_EQ(again.answers(), (std::map<size_t, std::string>{{0, "a"}}));
  ASSERT_TRUE(again.add(1, "second"));
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
  const Result<BatchFile> other = BatchFile::open(output(), "other");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find(partial()), std::string::npos);
  EXPECT_EQ(open().answers().size(), 1u);
}

TEST_F(BatchFileTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_FALSE(BatchFile::open(folder_ + "/none/out.jsonl", "same"));
}

}  // namespace
}  // namespace kvarto
