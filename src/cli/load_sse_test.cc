// Expected events: the examples and rules of the HTML standard, section 9.2.6.
#include "cli/load_sse.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvarto {
namespace {

std::vector<std::string> read(const std::vector<std::string>& pieces) {
  SseReader reader;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    EXPECT_TRUE(reader.feed(piece, [&](std::string_view data) -> Status {
      events.emplace_back(data);
      return {};
    }));
  }
  return events;
}

const std::string kStream =
    ": hello\n\n"
    "data: YHOO\ndata: +2\r\ndata: 10\n\n"
    "event: x\nid: 7\nretry: 10\ndata:no space\r\n\r\n"
    ":\n\n"
    "data\n\n"
    "data: {\"a\": \"b: c\"}\r\r"
    "datax: no\ndata:  two\n\n"
    "data: [DONE]\n\n"
    "data: cut";
const std::vector<std::string> kEvents = {"YHOO\n+2\n10", "no space", "", "{\"a\": \"b: c\"}", " two", "[DONE]"};

TEST(SseReader, ReadsAStream) { EXPECT_EQ(read({kStream}), kEvents); }

TEST(SseReader, AnyTwoCutsChangeNothing) {
  for (size_t i = 0; i <= kStream.size(); ++i) {
    for (size_t j = i; j <= kStream.size(); ++j) {
      ASSERT_EQ(read({kStream.substr(0, i), kStream.substr(i, j - i), kStream.substr(j)}), kEvents) << i << " " << j;
    }
  }
}

TEST(SseReader, ByteByByte) {
  std::vector<std::string> bytes;
  for (const char byte : kStream) bytes.emplace_back(1, byte);
  EXPECT_EQ(read(bytes), kEvents);
}

TEST(SseReader, ForgetsAByteOrderMarkAtTheStartOnly) {
  EXPECT_EQ(read({"\xef\xbb\xbf"
                  "data: a\n\n\xef\xbb\xbf"
                  "data: b\n\n"}),
            std::vector<std::string>{"a"});
}

TEST(SseReader, SaysWhetherAnEventIsUnfinished) {
  SseReader reader;
  const auto drop = [](std::string_view) -> Status { return {}; };
  ASSERT_TRUE(reader.feed("data: a\n\n", drop));
  EXPECT_FALSE(reader.inside_event());
  ASSERT_TRUE(reader.feed("data: b\n", drop));
  EXPECT_TRUE(reader.inside_event());
}

TEST(SseReader, EndsAtAnErrorAndAtEndlessEvents) {
  SseReader reader(64);
  int seen = 0;
  const Status status = reader.feed("data: a\n\ndata: b\n\n", [&](std::string_view) -> Status {
    ++seen;
    return fail(ErrorCode::cancelled, "enough");
  });
  EXPECT_FALSE(status);
  EXPECT_EQ(seen, 1);
  SseReader small(64);
  EXPECT_FALSE(small.feed("data: " + std::string(100, 'x'), [](std::string_view) -> Status { return {}; }));
}

}  // namespace
}  // namespace kvarto
