#include "codec/list.h"

#include <algorithm>
#include <array>

namespace kvarto {
namespace {

#define KVARTO_ROW(name, type) type::info(),
const std::array kCodecs = {KVARTO_CODECS(KVARTO_ROW)};
#undef KVARTO_ROW

}  // namespace

std::span<const CodecInfo> codec_list() { return kCodecs; }
const CodecInfo& codec_info(KvDtype dtype) { return kCodecs[static_cast<size_t>(dtype)]; }

const CodecInfo* find_codec(std::string_view name) {
  for (const CodecInfo& codec : kCodecs) {
    if (codec.name == name || std::ranges::find(codec.aliases, name) != codec.aliases.end()) return &codec;
  }
  return nullptr;
}

}  // namespace kvarto
