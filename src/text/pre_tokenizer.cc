#include "text/pre_tokenizer.h"

#include <algorithm>
#include <cstring>

#include "text/regex.h"

namespace kvarto {

namespace {

// Letters of the alphabets with case, as the published deepseek-llm splitter lists them (frozen at an old Unicode
// version, so no property class equals it).
#define CASED_LETTERS                                                                                    \
  R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})" \
  R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"   \
  R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"    \
  R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"             \
  R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"             \
  R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC})"      \
  R"(\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC})"     \
  R"(\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D})"      \
  R"(\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"               \
  R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE})"      \
  R"(\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"              \
  R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A})"             \
  R"(\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2})"     \
  R"(\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"

// The gpt-2 rule and its variants. White space and its complement are written [\s] and [^\s] throughout: see expand().
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACE_RUNS R"([\s]+(?![^\s])|[\s]+)"
#define GPT2 CONTRACTIONS R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|)" SPACE_RUNS
// DIGITS: how many digits one piece takes.
#define LLAMA3(DIGITS) \
  "(?i:" CONTRACTIONS R"()|[^\r\n\p{L}\p{N}]?\p{L}+|)" DIGITS R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|)" SPACE_RUNS
#define TEKKEN_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define TEKKEN_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"

struct Row {
  std::vector<std::string_view> names;  // the first is the name, the others aliases
  PreTokenizerRules rules;
  std::vector<std::string_view> patterns;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {{"gpt-2"}, {.bos_by_default = false, .ignore_merges = false, .nfc = false}, {GPT2}},
      {{"smollm"}, {.bos_by_default = false, .ignore_merges = false, .nfc = false}, {R"(\p{N})", GPT2}},
      {{"llama-bpe", "llama3", "llama-v3"},
       {.bos_by_default = true, .ignore_merges = true, .nfc = false},
       {LLAMA3(R"(\p{N}{1,3})")}},
      // NFC as in the published tokenizer; llama.cpp leaves it out.
      {{"qwen2"}, {.bos_by_default = false, .ignore_merges = false, .nfc = true}, {LLAMA3(R"(\p{N})")}},
      // The trailing space rule is [\s]+$ of the publication, written so that a long run inside the text is looked at
      // once.
      {{"deepseek-llm"},
       {.bos_by_default = false, .ignore_merges = false, .nfc = false},
       {R"([\r\n])", R"([\s]?[)" CASED_LETTERS R"(]+)",
        R"([\s]?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)", R"((?<![\s])[\s]++\z)",
        R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N}+)"}},
      {{"deepseek-v3"},
       {.bos_by_default = false, .ignore_merges = false, .nfc = false},
       {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
        R"( ?[\p{P}\p{S}]+[\r\n]*|[\s]*[\r\n]+|)" SPACE_RUNS}},
      {{"tekken"},
       {.bos_by_default = true, .ignore_merges = true, .nfc = false},
       {R"([^\r\n\p{L}\p{N}]?)" TEKKEN_UPPER "*" TEKKEN_LOWER R"(+|[^\r\n\p{L}\p{N}]?)" TEKKEN_UPPER "+" TEKKEN_LOWER
        R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|[\s]*[\r\n]+|)" SPACE_RUNS}},
      {{"default"},
       {.bos_by_default = false, .ignore_merges = false, .nfc = false},
       {R"([\p{P}\$\+<=>\^~\|]+)", CONTRACTIONS R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s]))", R"(\p{N}+)",
        "[0-9][0-9][0-9]"}},
  };
  return kRows;
}

// PCRE2's \s takes in U+180E, which left Unicode's White_Space long ago and which the published tokenizers do not
// count, so \s inside a class is replaced by the White_Space property itself.
std::string expand(std::string_view pattern) {
  constexpr std::string_view kSpace =
      R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\') {
      out += pattern[i];
      continue;
    }
    if (pattern[i + 1] == 's') {
      out += kSpace;
    } else {
      out += pattern.substr(i, 2);
    }
    ++i;
  }
  return out;
}

Result<Regex> compile(std::string_view pattern) {
  const std::string expanded = expand(pattern);
  Result<Regex> regex = Regex::compile(expanded, Regex::Engine::machine_code);
  if (regex) return regex;
  return fail(ErrorCode::internal,
              "pre-tokenizer pattern does not compile: " + regex.error().message + " of " + expanded);
}

// Appends the pieces of `text` under `regex`: matches and what lies between them.
Status split_at(const Regex& regex, std::string_view text, RegexMatcher& matcher, std::vector<std::string_view>& out) {
  size_t done = 0;
  while (done < text.size()) {
    const auto found = matcher.find(regex, text, {.from = done, .valid_utf8 = true, .not_empty = true});
    if (!found) {
      return fail(ErrorCode::invalid_argument, "text of " + std::to_string(text.size() - done) +
                                                   " bytes cannot be split by the pre-tokenizer (" +
                                                   found.error().message + "); send shorter text");
    }
    if (!*found) break;
    const auto [begin, end] = **found;
    if (begin > done) out.push_back(text.substr(done, begin - done));
    out.push_back(text.substr(begin, end - begin));
    done = end;
  }
  if (done < text.size()) out.push_back(text.substr(done));
  return {};
}

}  // namespace

struct PreTokenizer::Impl {
  std::vector<Regex> patterns;
  uint32_t match_limit;
};

PreTokenizer::PreTokenizer() : impl_(std::make_unique<Impl>()) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

std::vector<std::string> PreTokenizer::known_names() {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.insert(names.end(), row.names.begin(), row.names.end());
  return names;
}

Result<PreTokenizer> PreTokenizer::create(std::string_view name, uint32_t match_limit) {
  const auto row = std::find_if(rows().begin(), rows().end(), [&](const Row& r) {
    return std::find(r.names.begin(), r.names.end(), name) != r.names.end();
  });
  if (row == rows().end()) {
    std::string known;
    for (const std::string& n : known_names()) known += (known.empty() ? "" : ", ") + n;
    return fail(ErrorCode::unsupported,
                "tokenizer.ggml.pre = \"" + std::string(name) + "\" is not known; known are " + known);
  }
  PreTokenizer result;
  result.rules_ = row->rules;
  result.impl_->match_limit = match_limit;
  for (std::string_view pattern : row->patterns) {
    ASSIGN_OR_RETURN(Regex regex, compile(pattern));
    result.impl_->patterns.push_back(std::move(regex));
  }
  return result;
}

Result<std::vector<std::string_view>> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  RegexMatcher matcher({.steps = impl_->match_limit, .code_stack = true});
  std::vector<std::string_view> finer;
  for (const Regex& pattern : impl_->patterns) {
    finer.clear();
    finer.reserve(text.size() / 4 + 1);
    for (std::string_view piece : pieces) RETURN_IF_ERROR(split_at(pattern, piece, matcher, finer));
    std::swap(pieces, finer);
  }
  return pieces;
}

}  // namespace kvarto
