// Words and sentences of our own, from which tasks are made: lists without duplicates, and filler, which is text about
// everyday things that holds no digits, so that no number in it can be taken for one that a task asks for. Pure
// functions, any thread; a Filler belongs to one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "eval/random.h"

namespace kvarto {

using Words = std::span<const std::string_view>;

Words first_names();
Words last_names();
// The next three and professions: none begins with a vowel, so that "a" may stand in front.
Words objects();     // things one can carry or point at
Words adjectives();  // of objects
Words colours();
Words places();  // towns
Words professions();
Words departments();  // "the Harbour department"

std::string_view any(Words words, SplitMix& random);

// `pattern` with each "{x}" replaced by what `word` says for x.
std::string filled(std::string_view pattern, const std::function<std::string(char slot)>& word);

// Sentences, one after the other, in paragraphs that each have a subject. The same draws give the same text; no
// sentence comes twice in some ten thousand.
class Filler {
 public:
  explicit Filler(SplitMix random) : random_(random) {}
  std::string next();                                      // "Anna carried the lantern to Harrow."
  bool opens_paragraph() const { return order_.empty(); }  // the one that comes next

 private:
  SplitMix random_;
  std::vector<size_t> subjects_;  // still to come before one comes again
  std::vector<size_t> order_;     // sentences of this paragraph still to come, the last first
  std::unordered_set<std::string> written_;
};

// `count` sentences, each with what separates it from the one before: a space or a line end.
std::vector<std::string> filler_pieces(SplitMix random, size_t count);
// `count` sentences alone.
std::vector<std::string> filler_sentences(SplitMix random, size_t count);

// `lines`, each with its line end, and `sentences` spread evenly behind them, in lines of their own that open with
// `mark`: "Note:".
std::string among_filler(std::span<const std::string> lines, std::span<const std::string> sentences,
                         std::string_view mark);

}  // namespace kvarto
