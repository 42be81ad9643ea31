#include "text/stream_decoder.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/unicode.h"

namespace kvarto {
namespace {

std::vector<std::string> push_all(StreamDecoder& decoder, const std::vector<std::string>& pieces) {
  std::vector<std::string> shown;
  for (const std::string& piece : pieces) shown.push_back(decoder.push(piece));
  shown.push_back(decoder.finish());
  return shown;
}

using Strings = std::vector<std::string>;

TEST(StreamDecoder, CharactersAcrossPieces) {
  StreamDecoder emoji;
  EXPECT_EQ(push_all(emoji, {"\xF0\x9F", "\x98\x80"}), (Strings{"", "\U0001F600", ""}));
  StreamDecoder kana;
  EXPECT_EQ(push_all(kana, {"\xE3", "\x81", "\x82"}), (Strings{"", "", "\u3042", ""}));
}

TEST(StreamDecoder, BytesThatCannotBecomeACharacter) {
  StreamDecoder lone;
  EXPECT_EQ(push_all(lone, {"\xFF", "A"}), (Strings{"\uFFFD", "A", ""}));
  StreamDecoder unfinished;
  EXPECT_EQ(push_all(unfinished, {"\xF0\x9F"}), (Strings{"", "\uFFFD"}));
  StreamDecoder broken_off;
  EXPECT_EQ(push_all(broken_off, {"\xF0\x9F", "A"}), (Strings{"", "\uFFFDA", ""}));
  StreamDecoder surrogate;
  EXPECT_EQ(push_all(surrogate, {"\xED", "\xA0", "\x80"}), (Strings{"", "\uFFFD\uFFFD", "\uFFFD", ""}));
}

TEST(StreamDecoder, HoldsWhatMayBecomeAStop) {
  StreamDecoder decoder({"</s>"});
  EXPECT_EQ(decoder.push("a <"), "a ");
  EXPECT_EQ(decoder.push("/"), "");
  EXPECT_EQ(decoder.push("b"), "</b");
  EXPECT_EQ(decoder.push("</s> more"), "");
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(decoder.stop_string(), "</s>");
  EXPECT_EQ(decoder.push("never"), "");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, HeldTextComesOutAtTheEnd) {
  StreamDecoder decoder({"\n\nUser:"});
  EXPECT_EQ(push_all(decoder, {"yes\n", "\nUse"}), (Strings{"yes", "", "\n\nUse"}));
  EXPECT_FALSE(decoder.stopped());
}

TEST(StreamDecoder, IncludeStop) {
  StreamDecoder decoder({"END"}, true);
  EXPECT_EQ(push_all(decoder, {"a E", "ND b"}), (Strings{"a ", "END", ""}));
}

TEST(StreamDecoder, TheFirstCompleteStopWinsThenTheLongest) {
  StreamDecoder first({"abcd", "bc"});
  EXPECT_EQ(first.push("xabcd"), "xa");
  EXPECT_EQ(first.stop_string(), "bc");
  StreamDecoder longest({"c", "abc"});
  EXPECT_EQ(longest.push("xabc"), "x");
  EXPECT_EQ(longest.stop_string(), "abc");
}

TEST(StreamDecoder, StopsThatRepeatThemselves) {
  StreamDecoder decoder({"aab"});
  EXPECT_EQ(decoder.push("aaa"), "a");
  EXPECT_EQ(decoder.push("b!"), "");
  EXPECT_TRUE(decoder.stopped());
}

TEST(StreamDecoder, EmptyAndInvalidStopsNeverMatch) {
  StreamDecoder decoder({"", "\x98"});
  EXPECT_EQ(push_all(decoder, {"\xF0\x9F\x98\x80"}), (Strings{"\U0001F600", ""}));
  EXPECT_FALSE(decoder.stopped());
}

// The model: decode everything with a replacement per maximal subpart, then look for stops from left to right.
struct Expected {
  std::string text;
  std::string stop;
};

Expected brute_force(const std::string& bytes, const Strings& stops, bool include_stop) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = read_utf8(bytes, at);
    text += c.kind == Utf8Char::Kind::valid ? bytes.substr(at, c.bytes) : std::string(kReplacementCharacter);
    at += c.bytes;
  }
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (stop.size() > best.size() && stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        best = stop;
      }
    }
    if (!best.empty()) return {text.substr(0, include_stop ? end : end - best.size()), best};
  }
  return {text, ""};
}

RC_GTEST_PROP(StreamDecoder, EverySplitGivesTheSameValidText, ()) {
  // Few different fragments, so that stops and broken characters really occur.
  const Strings alphabet = {"a", "b", "\u00e9", "\U0001F600", "\xF0\x9F", "\x98", "\xE3", "\xFF", "\uFFFD", "ab"};
  const auto fragment = rc::gen::elementOf(alphabet);
  const auto join = [](const Strings& parts) {
    std::string out;
    for (const std::string& p : parts) out += p;
    return out;
  };
  const std::string bytes = join(*rc::gen::container<Strings>(fragment));
  Strings stops = *rc::gen::container<Strings>(rc::gen::map(
      rc::gen::resize(4, rc::gen::container<Strings>(rc::gen::elementOf(Strings{"a", "b", "\u00e9", "\uFFFD"}))),
      join));
  const bool include_stop = *rc::gen::arbitrary<bool>();
  const Expected expected = brute_force(bytes, stops, include_stop);

  StreamDecoder decoder(stops, include_stop);
  std::string shown;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = *rc::gen::inRange<size_t>(1, bytes.size() - at + 1);
    RC_ASSERT(decoder.push("") == "");
    const std::string part = decoder.push(std::string_view(bytes).substr(at, length));
    RC_ASSERT(!find_invalid_utf8(part));
    shown += part;
    // Nothing is shown that the end would take back.
    RC_ASSERT(expected.text.compare(0, shown.size(), shown) == 0);
    at += length;
  }
  shown += decoder.finish();
  RC_ASSERT(shown == expected.text);
  RC_ASSERT(decoder.stopped() == !expected.stop.empty());
  RC_ASSERT(decoder.stop_string() == expected.stop);
}

}  // namespace
}  // namespace kvarto
