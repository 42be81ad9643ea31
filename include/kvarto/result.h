// Result<T>: a value, or an Error that says what was wrong and what to do about it. Everything a caller, file, peer or
// disk can cause travels this way; exceptions of libraries stop in the file that wraps the library. Any thread.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace kvarto {

enum class ErrorCode {
  invalid_argument,  // the caller asked for something that makes no sense or is not built
  not_found,         // a file, model, tensor or key is missing
  corrupt,           // a file or message violates its format
  unsupported,       // valid, but not implemented here (the message says what is)
  out_of_memory,     // does not fit the budget (the message carries the numbers)
  io,                // the operating system refused
  network,           // a peer failed or is unreachable
  cancelled,         // the caller changed its mind
  internal,          // our own bug; see CHECK
};

// `message` is one line: the offending value first, then the remedy. No trailing period, no newline.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

// RETURN_IF_ERROR(expr): hands a failed Status/Result up. ASSIGN_OR_RETURN(auto x, expr): unwraps or hands up.
#define KVARTO_CONCAT_INNER(a, b) a##b
#define KVARTO_CONCAT(a, b) KVARTO_CONCAT_INNER(a, b)
#define RETURN_IF_ERROR(expr)                                                                       \
  do {                                                                                              \
    auto kvarto_status_ = (expr);                                                                   \
    if (!kvarto_status_) return tl::unexpected<::kvarto::Error>(std::move(kvarto_status_.error())); \
  } while (false)
#define ASSIGN_OR_RETURN(decl, expr) ASSIGN_OR_RETURN_IMPL(KVARTO_CONCAT(kvarto_result_, __LINE__), decl, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, decl, expr)                              \
  auto tmp = (expr);                                                        \
  if (!tmp) return tl::unexpected<::kvarto::Error>(std::move(tmp.error())); \
  decl = std::move(*tmp)

}  // namespace kvarto
