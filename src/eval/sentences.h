// Patterns of the sentences that filler is made of, by subject. Slots: {n} first name, {o} object, {p} place,
// {c} colour, {a} adjective, {j} profession, {d} day, {m} month, {q} number in words. No digits. Pure, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kvarto {

inline constexpr size_t kSubjects = 16, kSentences = 12;  // of each subject

std::span<const std::string_view, kSubjects * kSentences> sentence_patterns();

}  // namespace kvarto
