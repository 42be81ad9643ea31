#include "base/random.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace kvarto {
namespace {

TEST(Random, BitsOfTwoThreadsDiffer) {
  std::set<uint64_t> seen = {random_bits(), random_bits()};
  std::thread([&] { seen.insert({random_bits(), random_bits()}); }).join();
  EXPECT_EQ(seen.size(), 4u);
}

TEST(Random, SecretsAreLongAndNeverTheSame) {
  std::set<std::string> seen;
  std::set<char> bytes;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = random_secret();
    EXPECT_EQ(secret.size(), 32u);
    bytes.insert(secret.begin(), secret.end());
    seen.insert(secret);
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_GT(bytes.size(), 200u) << "not all bytes come";  // 3,200 draws of 256
}

}  // namespace
}  // namespace kvarto
