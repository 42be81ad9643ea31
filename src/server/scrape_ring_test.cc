#include "server/scrape_ring.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(ScrapeRing, KeepsTheLastEight) {
  ScrapeRing ring;
  EXPECT_EQ(ring.find(0), nullptr);
  EXPECT_EQ(ring.find(1), nullptr);
  for (uint64_t id = 1; id <= 11; ++id) EXPECT_EQ(ring.add("text " + std::to_string(id)), id);
  for (uint64_t id = 4; id <= 11; ++id) {
    ASSERT_NE(ring.find(id), nullptr) << id;
    EXPECT_EQ(*ring.find(id), "text " + std::to_string(id));
  }
  for (const uint64_t gone : {uint64_t{0}, uint64_t{3}, uint64_t{12}, UINT64_MAX}) EXPECT_EQ(ring.find(gone), nullptr);
}

TEST(ScrapeRing, ATextStaysWhileItIsRead) {
  ScrapeRing ring;
  const auto text = ring.find(ring.add("old"));
  for (int i = 0; i < 20; ++i) ring.add("new");
  EXPECT_EQ(*text, "old");
}

TEST(ScrapeId, OfAQuery) {
  EXPECT_EQ(scrape_id(""), std::nullopt);
  EXPECT_EQ(scrape_id("name[]=x"), std::nullopt);
  EXPECT_EQ(scrape_id("scrape=17"), 17u);
  EXPECT_EQ(scrape_id("a=1&scrape=18&b"), 18u);
  for (const char* bad : {"scrape=", "scrape=x", "scrape=-1", "scrape=1x", "scrape=99999999999999999999"}) {
    EXPECT_EQ(scrape_id(bad), 0u) << bad;
  }
}

}  // namespace
}  // namespace kvarto
