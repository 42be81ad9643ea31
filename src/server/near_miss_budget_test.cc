#include "server/near_miss_budget.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

using Sizes = std::vector<size_t>;

std::vector<std::vector<TokenId>> prompts(const Sizes& sizes) {
  std::vector<std::vector<TokenId>> made;
  for (const size_t size : sizes) made.emplace_back(size, 1);
  return made;
}

TEST(NearMissBudget, LooksAtTheFirstPromptsOfACall) {
  NearMissBudget budget;
  EXPECT_EQ(budget.take(prompts(Sizes(1024, 100))), Sizes(4, 100));
  EXPECT_EQ(budget.take(prompts({10, 20})), (Sizes{10, 20}));
}

TEST(NearMissBudget, CallsThatWaitTogetherShareIt) {
  NearMissBudget budget;
  EXPECT_EQ(budget.take(prompts({30'000, 1'000, 5'000, 10})), (Sizes{30'000, 1'000, 1'768})) << "32,768 in all";
  EXPECT_EQ(budget.take(prompts({10})), Sizes{}) << "used up";
  budget.give_back(32'768);
  EXPECT_EQ(budget.take(prompts({1'000'000})), Sizes{32'768}) << "the beginning of a long one";
}

}  // namespace
}  // namespace kvarto
