#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace kvarto {
namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("kvarto_file_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }
  size_t entries() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {})); }

 private:
  std::filesystem::path path_;
};

TEST(File, WhatIsWrittenIsReadAndMapped) {
  const Folder folder;
  const std::string path = folder / "a", content("with a\0 byte\n", 13);
  ASSERT_TRUE(write_file_atomically(path, content));
  EXPECT_EQ(read_file(path).value(), content);
  const MappedFile mapped = MappedFile::open(path).value();
  EXPECT_EQ(mapped.bytes().size(), content.size());
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), content.data(), content.size()), 0);
  EXPECT_EQ(folder.entries(), 1u);  // no temporary is left
}

TEST(File, ErrorsNameThePath) {
  const Folder folder;
  EXPECT_NE(read_file(folder / "missing").error().message.find("missing: cannot open"), std::string::npos);
  EXPECT_EQ(read_file(folder / "missing").error().code, ErrorCode::not_found);
  EXPECT_NE(MappedFile::open(folder / "").error().message.find("not a regular file"), std::string::npos);
  EXPECT_FALSE(write_file_atomically(folder / "no/such/folder", "x"));
  ASSERT_TRUE(write_file_atomically(folder / "long", "12345"));
  EXPECT_NE(read_file(folder / "long", 4).error().message.find("longer than 4 bytes"), std::string::npos);
}

TEST(File, ManyWritersOneWinner) {
  const Folder folder;
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'i'; ++c) {
    writers.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(write_file_atomically(folder / "shared", std::string(5000, c)));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = read_file(folder / "shared").value();
  EXPECT_EQ(content, std::string(5000, content[0]));
  EXPECT_EQ(folder.entries(), 1u);
}

}  // namespace
}  // namespace kvarto
