#include "server/turn_memory.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "format/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvarto {
namespace {

using Ids = std::vector<TokenId>;

// A fake vocabulary: bytes are their own ids; 256 is "<e>", a control token; from 300 on pairs of letters, which
// encode() never uses: what a model may generate and a tokenizer would not.
constexpr TokenId kEnd = 256, kPairs = 300;

std::string piece(TokenId id, bool special) {
  if (id < 256) return std::string(1, static_cast<char>(id));
  if (id == kEnd) return special ? "<e>" : "";
  const int pair = id - kPairs;
  return {static_cast<char>('a' + pair / 26), static_cast<char>('a' + pair % 26)};
}

TokenId pair(const char* letters) { return kPairs + (letters[0] - 'a') * 26 + (letters[1] - 'a'); }

Result<Ids> encode(std::string_view text) {
  Ids ids;
  for (size_t at = 0; at < text.size();) {
    const bool end = text.substr(at).starts_with("<e>");
    ids.push_back(end ? kEnd : static_cast<uint8_t>(text[at]));
    at += end ? 3 : 1;
  }
  return ids;
}

std::string spell(const Ids& ids) {
  std::string text;
  for (const TokenId id : ids) text += piece(id, true);
  return text;
}

template <typename... Id>
Ids of(Id... ids) {
  return {static_cast<TokenId>(ids)...};
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void remember(TurnMemory& memory, std::string_view scope, std::string_view prompt, const Ids& prompt_ids,
              std::string_view output, const Ids& output_ids) {
  const TurnOutput one{output, output_ids};
  memory.remember({scope, prompt, prompt_ids, {&one, 1}});
}

TEST(TurnMemory, GeneratedIdsComeBackOverSeveralTurns) {
  TurnMemory memory({}, piece);
  EXPECT_FALSE(memory.splice("", "Q:<e>", encode));
  const Ids first = *encode("Q:"), said = {pair("ab"), pair("cd"), kEnd};
  remember(memory, "", "Q:", first, "abcd", said);

  const auto second = memory.splice("", "Q:abcd<e>R:", encode);
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, first + of(pair("ab"), pair("cd")) + *encode("<e>R:"));
  remember(memory, "", "Q:abcd<e>R:", *second, "xy", {pair("xy"), kEnd});

  const auto third = memory.splice("", "Q:abcd<e>R:xy<e>S:", encode);
  ASSERT_TRUE(third);
  EXPECT_EQ(*third, *second + of(pair("xy")) + *encode("<e>S:"));
  // Another second question, and one whose answer was changed.
  EXPECT_EQ(*memory.splice("", "Q:abcd<e>T:", encode), first + of(pair("ab"), pair("cd")) + *encode("<e>T:"));
  EXPECT_EQ(*memory.splice("", "Q:abcd<e>R:xz<e>", encode), *second + *encode("xz<e>"));
  EXPECT_FALSE(memory.splice("", "Q:abcx<e>R:", encode));
  EXPECT_FALSE(memory.splice("", "Q:abc", encode));

  const TurnMemoryCounts counts = memory.counts();
  EXPECT_EQ(counts.lookups, 7u);
  EXPECT_EQ(counts.hits, 4u);
  EXPECT_EQ(counts.tokens_spliced, 4u + 8u + 4u + 4u);
  EXPECT_EQ(counts.turns, 2u);
  EXPECT_EQ(counts.chats, 1u);
}

TEST(TurnMemory, ThePromptOfManySamplesIsSpelledOnce) {
  size_t spelled = 0;
  TurnMemory memory({}, [&](TokenId id, bool special) {
    ++spelled;
    return piece(id, special);
  });
  const std::string prompt = "Q:" + std::string(5000, 'q');
  const Ids ids = *encode(prompt);
  const Ids said[] = {of(pair("ab")), of(pair("cd")), of(pair("ab"), 'c'), of('x')};
  const TurnOutput outputs[] = {{"ab", said[0]}, {"cd", said[1]}, {"abc", said[2]}, {"x", said[3]}};
  memory.remember({"", prompt, ids, outputs});
  EXPECT_LT(spelled, 2 * ids.size());
  EXPECT_EQ(*memory.splice("", prompt + "ab<e>", encode), ids + said[0] + of(kEnd));
  EXPECT_EQ(*memory.splice("", prompt + "cd<e>", encode), ids + said[1] + of(kEnd));
  EXPECT_EQ(*memory.splice("", prompt + "abc<e>", encode), ids + said[2] + of(kEnd));
  EXPECT_EQ(*memory.splice("", prompt + "x<e>", encode), ids + said[3] + of(kEnd));
  EXPECT_EQ(memory.counts().turns, 4u);
  // The chat of one of them goes on, twice.
  const std::string next = prompt + "cd<e>R:";
  const Ids next_ids = *memory.splice("", next, encode);
  const TurnOutput later[] = {{"ef", {}}, {"ef", said[0]}, {"cd", said[1]}, {"x", said[3]}};
  memory.remember({"", next, next_ids, later});
  EXPECT_EQ(*memory.splice("", next + "cd<e>", encode), next_ids + said[1] + of(kEnd));
  EXPECT_EQ(*memory.splice("", next + "x<e>", encode), next_ids + said[3] + of(kEnd));
  EXPECT_EQ(*memory.splice("", prompt + "ab<e>", encode), ids + said[0] + of(kEnd));
  EXPECT_EQ(memory.counts().turns, 4u + 1u + 2u);
}

// Too small for one chat beside its sibling: the known part may be forgotten between two samples.
TEST(TurnMemory, ManySamplesInLittleMemory) {
  for (const size_t turns : {1, 2, 3}) {
    TurnMemory memory({.max_turns = turns}, piece);
    const Ids said[] = {of(pair("ab")), of(pair("cd")), of(pair("ef"))};
    const TurnOutput first{"ab", said[0]};
    memory.remember({"", "Q:", *encode("Q:"), {&first, 1}});
    const Ids ids = *encode("Q:") + said[0] + *encode("<e>R:");
    const TurnOutput outputs[] = {{"ab", said[0]}, {"cd", said[1]}, {"ef", said[2]}};
    memory.remember({"", "Q:ab<e>R:", ids, outputs});
    EXPECT_LE(memory.counts().turns, turns);
    const auto last = memory.splice("", "Q:ab<e>R:ef<e>", encode);
    if (last) {
      EXPECT_EQ(*last, ids + said[2] + of(kEnd)) << turns;
    }
  }
}

TEST(TurnMemory, AnswersTrimmedByTheTemplate) {
  TurnMemory memory({}, piece);
  remember(memory, "", "Q:", *encode("Q:"), "ab \n", {pair("ab"), ' ', '\n', kEnd});
  EXPECT_EQ(*memory.splice("", "Q:ab<e>", encode), *encode("Q:") + of(pair("ab"), kEnd));
  EXPECT_EQ(*memory.splice("", "Q:ab \n<e>", encode), *encode("Q:") + of(pair("ab"), ' ', '\n', kEnd));
  // The next turn goes on from the trimmed answer, in the same chat.
  const Ids next = *memory.splice("", "Q:ab<e>R:", encode);
  remember(memory, "", "Q:ab<e>R:", next, "cd", {pair("cd")});
  EXPECT_EQ(memory.counts().chats, 1u);
  EXPECT_EQ(*memory.splice("", "Q:ab<e>R:cd<e>", encode), next + of(pair("cd"), kEnd));
}

TEST(TurnMemory, OnlyTokensThatSpellTheText) {
  TurnMemory memory({}, piece);
  // Cut by a stop string in the middle of a token: the whole tokens before it.
  remember(memory, "", "Q:", *encode("Q:"), "abc", {pair("ab"), pair("cd")});
  EXPECT_EQ(*memory.splice("", "Q:abc<e>", encode), *encode("Q:") + of(pair("ab"), 'c', kEnd));
  // The text hides a control token in the middle: nothing behind it.
  remember(memory, "", "R:", *encode("R:"), "abcd", {pair("ab"), kEnd, pair("cd")});
  EXPECT_EQ(*memory.splice("", "R:abcd", encode), *encode("R:") + of(pair("ab"), 'c', 'd'));
  // Half a character, shown as U+FFFD.
  remember(memory, "", "S:", *encode("S:"), "ab\uFFFD", {pair("ab"), 0xEF});
  EXPECT_EQ(*memory.splice("", "S:ab\uFFFD", encode), *encode("S:") + of(pair("ab")) + *encode("\uFFFD"));
  remember(memory, "", "T:", *encode("T:"), "", {kEnd});
  remember(memory, "", "U:", *encode("U:"), "xyz", {pair("ab")});
  EXPECT_FALSE(memory.splice("", "T:<e>", encode));
  EXPECT_FALSE(memory.splice("", "U:xyz", encode));
  EXPECT_EQ(memory.counts().turns, 3u);
}

TEST(TurnMemory, ScopesNeverShare) {
  TurnMemory memory({}, piece);
  remember(memory, "s1", "Q:", *encode("Q:"), "ab", {pair("ab")});
  remember(memory, "s2", "Q:", *encode("Q:"), "ab", {'a', 'b'});
  EXPECT_EQ(*memory.splice("s1", "Q:ab", encode), *encode("Q:") + of(pair("ab")));
  EXPECT_EQ(*memory.splice("s2", "Q:ab", encode), *encode("Q:ab"));
  for (const char* other : {"", "s", "s1Q", "s11"}) EXPECT_FALSE(memory.splice(other, "Q:ab", encode)) << other;
}

TEST(TurnMemory, TheRestMustSpellItself) {
  TurnMemory memory({}, piece);
  remember(memory, "", "Q:", *encode("Q:"), "ab", {pair("ab")});
  const auto with_space = [](std::string_view text) -> Result<Ids> { return of(' ') + *encode(text); };
  EXPECT_FALSE(memory.splice("", "Q:ab more", with_space));
  const auto refuses = [](std::string_view) -> Result<Ids> { return fail(ErrorCode::invalid_argument, "no"); };
  EXPECT_FALSE(memory.splice("", "Q:ab more", refuses));
  EXPECT_EQ(memory.counts().refused, 2u);
  // Behind a control token every stretch is cut as it would be anyway, spaces that the tokenizer adds included.
  const auto adds_later = [](std::string_view text) -> Result<Ids> { return of(kEnd, ' ') + *encode(text.substr(3)); };
  EXPECT_EQ(*memory.splice("", "Q:ab<e>x", adds_later), *encode("Q:") + of(pair("ab"), kEnd, ' ', 'x'));
}

TEST(TurnMemory, ATruncatedPromptIsNotKept) {
  TurnMemory memory({}, piece);
  remember(memory, "", "a long Q:", *encode("Q:"), "ab", of(pair("ab")));
  EXPECT_FALSE(memory.splice("", "a long Q:ab<e>", encode));
  EXPECT_EQ(memory.counts().refused, 1u);
  EXPECT_EQ(memory.counts().turns, 0u);
  // A BOS in front and spaces that the tokenizer adds are no part of the text.
  remember(memory, "", "Q: e\u0301", of(kEnd, ' ') + *encode("Q: \u00e9"), "ab", of(pair("ab")));
  EXPECT_EQ(*memory.splice("", "Q: e\u0301ab", encode), of(kEnd, ' ') + *encode("Q: \u00e9") + of(pair("ab")));
}

TEST(TurnMemory, Bounded) {
  TurnMemory few({.max_turns = 3, .max_bytes = 1 << 20}, piece);
  for (int i = 0; i < 10; ++i) {
    const std::string prompt = "Q" + std::to_string(i);
    remember(few, std::to_string(i % 2), prompt, *encode(prompt), "ab", {pair("ab")});
    EXPECT_LE(few.counts().turns, 3u);
    if (i == 4) {
      EXPECT_TRUE(few.splice("0", "Q2ab", encode));  // used: 3 goes before it
    }
  }
  EXPECT_FALSE(few.splice("0", "Q6ab", encode));
  EXPECT_TRUE(few.splice("1", "Q7ab", encode));

  TurnMemory small({.max_turns = 1000, .max_bytes = 20'000}, piece);
  Ids ids = *encode("Q");
  std::string text = "Q";
  for (int i = 0; i < 200; ++i) {
    remember(small, "", text, ids, "ab", {pair("ab")});
    EXPECT_LE(small.counts().bytes, 20'000u);
    text += "ab<e>" + std::string(50, 'x');
    ids = *encode(text);
  }
  TurnMemory none({.max_turns = 0}, piece);
  remember(none, "", "Q", *encode("Q"), "ab", {pair("ab")});
  EXPECT_FALSE(none.splice("", "Qab", encode));
  TurnMemory tiny({.max_turns = 10, .max_bytes = 10}, piece);
  remember(tiny, "", "Q", *encode("Q"), "ab", {pair("ab")});
  EXPECT_EQ(tiny.counts().bytes, 0u);
  EXPECT_EQ(tiny.counts().chats, 0u);
}

// Chats that grow, branch and repeat at random: whatever is spliced spells the text, and answers are found when nothing
// was forgotten.
RC_GTEST_PROP(TurnMemory, SplicedIdsSpellTheText, ()) {
  const bool roomy = *rc::gen::arbitrary<bool>();
  TurnMemory memory({.max_turns = roomy ? 1000u : 4u, .max_bytes = roomy ? 1u << 20 : 3000u}, piece);
  struct Known {
    std::string scope, text;  // prompt and answer
    Ids ids;
  };
  std::vector<Known> known;
  const int turns = *rc::gen::inRange(1, 25);
  for (int i = 0; i < turns; ++i) {
    std::string scope = *rc::gen::element<std::string>("", "s"), text;
    const bool goes_on = !known.empty() && *rc::gen::inRange(0, 4) > 0;
    if (goes_on) {
      const Known& before = known[*rc::gen::inRange<size_t>(0, known.size())];
      scope = before.scope;
      text = before.text + "<e>";
    }
    text += *rc::gen::element<std::string>("Q:", "ab", "R ");
    const auto spliced = memory.splice(scope, text, encode);
    if (spliced) RC_ASSERT(spell(*spliced) == text);
    if (goes_on && roomy) RC_ASSERT(spliced.has_value());
    const Ids ids = spliced ? *spliced : *encode(text);
    const Ids said =
        *rc::gen::container<std::vector<TokenId>>(rc::gen::element<TokenId>(pair("ab"), pair("xy"), 'a', ' ', '\n'));
    const std::string output = spell(said);
    remember(memory, scope, text, ids, output, said + of(kEnd));
    if (!said.empty()) known.push_back({scope, text + output, ids + said});
    const TurnMemoryCounts counts = memory.counts();
    RC_ASSERT(counts.turns <= (roomy ? 1000u : 4u) && counts.bytes <= (roomy ? 1u << 20 : 3000u));
    RC_ASSERT((counts.chats == 0) == (counts.bytes == 0));
    // The last one with this text is what is found.
    if (roomy && !said.empty()) {
      const auto again = memory.splice(scope, text + output, encode);
      RC_ASSERT(again.has_value());
      RC_ASSERT(spell(*again) == text + output);
      RC_ASSERT(*again == ids + said);
    }
  }
}

TEST(TurnMemory, ManyThreads) {
  TurnMemory memory({.max_turns = 20, .max_bytes = 8000}, piece);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string text = "Q" + std::to_string(t % 2);
      for (int i = 0; i < 200; ++i) {
        const auto ids = memory.splice("", text, encode);
        if (ids && spell(*ids) != text) ++wrong;
        remember(memory, "", text, ids ? *ids : *encode(text), "ab", {pair("ab")});
        text = i % 10 == 9 ? "Q" + std::to_string(t % 2) : text + "ab<e>";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(memory.counts().lookups, 800u);
}

// A chat of three turns with a real vocabulary and its template: the answers are random tokens, of which plain encoding
// would make others; turn n+1 holds every id of turn n.
class TurnMemoryOfTinyModels : public ::testing::TestWithParam<const char*> {};

TEST_P(TurnMemoryOfTinyModels, ThreeTurns) {
  const auto file = GgufFile::open(std::string(KVARTO_SOURCE_DIR) + "/tests/tiny/" + GetParam() + ".gguf");
  ASSERT_TRUE(file) << file.error().message;
  const auto& gguf = **file;
  const auto tokenizer = *Tokenizer::from_gguf(gguf);
  const auto source = gguf.get_string("tokenizer.chat_template");
  ASSERT_TRUE(source && *source);
  const ChatTemplate chat = std::move(*ChatTemplate::parse(std::string(**source)));
  TurnMemory memory({}, [&](TokenId id, bool special) { return tokenizer->piece(id, special); });
  const auto encode_rest = [&](std::string_view text) { return tokenizer->encode(text); };

  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  Ids before;
  uint32_t draw = 7;
  size_t differs = 0;
  for (int turn = 0; turn < 3; ++turn) {
    messages.push_back({{"role", "user"}, {"content", "Say something, caf\u00e9 number " + std::to_string(turn)}});
    const std::string bos = tokenizer->vocabulary().bos ? tokenizer->piece(*tokenizer->vocabulary().bos, true) : "";
    const auto text = chat.render({{"messages", messages}, {"add_generation_prompt", true}, {"bos_token", bos}});
    ASSERT_TRUE(text) << text.error().message;
    const Ids plain = *tokenizer->encode(*text, {.add_bos = true});
    const auto spliced = memory.splice("", *text, encode_rest);
    ASSERT_EQ(spliced.has_value(), turn > 0);
    const Ids ids = spliced ? *spliced : plain;
    EXPECT_EQ(tokenizer->decode(ids, true), tokenizer->decode(plain, true));
    EXPECT_TRUE(std::equal(before.begin(), before.end(), ids.begin()));
    if (ids != plain) ++differs;

    Ids said;
    std::string output;
    while (said.size() < 400) {
      draw = draw * 1664525 + 1013904223;
      const auto id = static_cast<TokenId>((draw >> 8) % tokenizer->size());
      const std::string spelled = tokenizer->piece(id, true);
      const bool letters = std::all_of(spelled.begin(), spelled.end(), [](char c) { return c >= 'a' && c <= 'z'; });
      if (spelled.empty() || !letters || tokenizer->is_control(id)) continue;
      said.push_back(id);
      output += spelled;
    }
    remember(memory, "", *text, ids, output, said + of(tokenizer->stop_ids().front()));
    messages.push_back({{"role", "assistant"}, {"content", output}});
    before = ids + said;
  }
  EXPECT_EQ(differs, 2u);  // the test would show nothing if plain encoding gave the same
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TurnMemoryOfTinyModels,
                         ::testing::Values("tiny_llama", "tiny_llama3", "tiny_qwen2", "tiny_gemma3"));

}  // namespace
}  // namespace kvarto
