#include "cli/load_words.h"

#include <algorithm>
#include <span>

#include "cli/load_random.h"

namespace kvarto {
namespace {

// Frequent English words, which vocabularies of language models have in one piece.
constexpr std::string_view kWords[] = {
    "time",      "year",       "people",      "way",       "day",       "man",       "thing",  "woman",   "life",
    "child",     "world",      "school",      "state",     "family",    "student",   "group",  "country", "problem",
    "hand",      "part",       "place",       "case",      "week",      "company",   "system", "program", "question",
    "work",      "government", "number",      "night",     "point",     "home",      "water",  "room",    "mother",
    "area",      "money",      "story",       "fact",      "month",     "lot",       "right",  "study",   "book",
    "eye",       "job",        "word",        "business",  "issue",     "side",      "kind",   "head",    "house",
    "service",   "friend",     "father",      "power",     "hour",      "game",      "line",   "end",     "member",
    "law",       "car",        "city",        "community", "name",      "president", "team",   "minute",  "idea",
    "kid",       "body",       "information", "back",      "parent",    "face",      "others", "level",   "office",
    "door",      "health",     "person",      "art",       "war",       "history",   "party",  "result",  "change",
    "morning",   "reason",     "research",    "girl",      "guy",       "moment",    "air",    "teacher", "force",
    "education", "good",       "new",         "first",     "last",      "long",      "great",  "little",  "own",
    "other",     "old",        "big",         "high",      "different", "small",     "large",  "next",    "early",
    "young",     "important",  "few",         "public",    "bad",       "same",      "able",   "be",      "have",
    "do",        "say",        "get",         "make",      "go",        "know",      "take",   "see",     "come",
    "think",     "look",       "want",        "give",      "use",       "find",      "tell",   "ask",     "seem",
    "feel",      "try",        "leave",       "call",      "and",       "but",       "with",   "from",    "about",
    "into",      "over",       "after",       "under",     "because",   "while",     "before", "between", "through",
    "during",    "without",
};
constexpr size_t kFewest = 48;  // words for which texts still differ enough

using Words = std::span<const std::string_view>;

std::string join(Words words) {
  std::string text;
  for (const std::string_view word : words) (text += ' ') += word;
  return text;
}

// Those of `words` that are one token each: asks for all together, and for halves where that is not so.
Status find_single(const CountTokens& count, uint32_t overhead, Words words, std::vector<std::string_view>& found,
                   int& questions) {
  if (words.empty() || questions <= 0) return {};
  --questions;
  ASSIGN_OR_RETURN(const uint32_t tokens, count(std::string(Filler::kOpening) + join(words)));
  if (tokens == overhead + words.size()) {
    found.insert(found.end(), words.begin(), words.end());
    return {};
  }
  if (words.size() == 1) return {};
  RETURN_IF_ERROR(find_single(count, overhead, words.first(words.size() / 2), found, questions));
  return find_single(count, overhead, words.subspan(words.size() / 2), found, questions);
}

}  // namespace

Result<Filler> Filler::calibrate(const CountTokens& count) {
  constexpr int kMostQuestions = 60;
  Filler filler;
  ASSIGN_OR_RETURN(filler.overhead_, count(std::string(kOpening)));
  int questions = kMostQuestions;
  RETURN_IF_ERROR(find_single(count, filler.overhead_, kWords, filler.words_, questions));
  if (filler.words_.size() >= kFewest) return filler;
  ASSIGN_OR_RETURN(const uint32_t tokens, count(std::string(kOpening) + join(kWords)));
  if (tokens <= filler.overhead_) {
    return fail(ErrorCode::network, "the server counts " + std::to_string(tokens) + " tokens for " +
                                        std::to_string(std::size(kWords)) +
                                        " words; without counts no prompt of a wanted length can be made");
  }
  filler.exact_ = false;
  filler.tokens_per_word_ = static_cast<double>(tokens - filler.overhead_) / static_cast<double>(std::size(kWords));
  filler.words_.assign(std::begin(kWords), std::end(kWords));
  return filler;
}

std::string Filler::words(uint64_t id, uint32_t tokens) const {
  const auto wanted = static_cast<uint64_t>(static_cast<double>(tokens) / tokens_per_word_ + 0.5);
  std::string text;
  text.reserve(wanted * 6);
  for (uint64_t i = 0; i < wanted; ++i) (text += ' ') += words_[mix({id, i}) % words_.size()];
  return text;
}

}  // namespace kvarto
