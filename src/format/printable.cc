#include "format/printable.h"

#include <utf8proc.h>

#include "base/hash.h"

namespace kvarto {

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  while (!text.empty()) {
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t length = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size()), &code_point);
    const bool plain = length > 0 && code_point >= 0x20 && !(code_point >= 0x7f && code_point < 0xa0);
    const size_t used = plain ? static_cast<size_t>(length) : 1;
    const std::string piece = plain ? std::string(text.substr(0, used)) : "\\x" + to_hex({bytes, 1});
    if (out.size() + piece.size() > limit) return out + "...";
    out += piece;
    text.remove_prefix(used);
  }
  return out;
}

std::string quoted(std::string_view text, size_t limit) { return '"' + printable(text, limit) + '"'; }

}  // namespace kvarto
