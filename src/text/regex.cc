#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/check.h"

namespace kvarto {
namespace {

std::string words_of(int error) {
  PCRE2_UCHAR words[128];
  pcre2_get_error_message(error, words, sizeof words);
  return reinterpret_cast<const char*>(words);
}

struct FreeMatchData {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct FreeJitStack {
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

}  // namespace

void Regex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Regex> Regex::compile(std::string_view pattern, Engine engine) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                         PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code == nullptr) {
    return fail(ErrorCode::invalid_argument, words_of(error) + " at byte " + std::to_string(offset));
  }
  Regex regex;
  regex.code_.reset(code);
  // Where the system forbids writable pages of code this fails and the interpreter is used.
  if (engine == Engine::machine_code) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

struct RegexMatcher::Impl {
  std::unique_ptr<pcre2_match_data, FreeMatchData> data;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context;
  std::unique_ptr<pcre2_jit_stack, FreeJitStack> stack;  // null: none asked for, or none to be had
};

RegexMatcher::RegexMatcher(const Limits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->data.reset(pcre2_match_data_create(1, nullptr));
  impl_->context.reset(pcre2_match_context_create(nullptr));
  CHECK(impl_->data && impl_->context, "PCRE2 is out of memory");
  pcre2_match_context* const context = impl_->context.get();
  pcre2_set_match_limit(context, limits.steps);
  if (limits.depth > 0) pcre2_set_depth_limit(context, limits.depth);
  if (limits.heap_kib > 0) pcre2_set_heap_limit(context, limits.heap_kib);
  if (limits.code_stack) impl_->stack.reset(pcre2_jit_stack_create(size_t{32} << 10, size_t{8} << 20, nullptr));
  if (impl_->stack) pcre2_jit_stack_assign(context, nullptr, impl_->stack.get());
}
RegexMatcher::~RegexMatcher() = default;

Result<std::optional<RegexMatcher::Range>> RegexMatcher::find(const Regex& regex, std::string_view text,
                                                              const Find& find) {
  const uint32_t options = (find.valid_utf8 ? PCRE2_NO_UTF_CHECK : 0) | (find.not_empty ? PCRE2_NOTEMPTY : 0);
  const int rc =
      pcre2_match(static_cast<const pcre2_code*>(regex.code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                  text.size(), find.from, options, impl_->data.get(), impl_->context.get());
  if (rc == PCRE2_ERROR_NOMATCH) return std::optional<Range>();
  if (rc < 0) return fail(ErrorCode::invalid_argument, words_of(rc));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(impl_->data.get());
  return std::optional<Range>(Range{range[0], range[1]});
}

}  // namespace kvarto
