// The list of codecs: a new KV dtype is an include and a row here, and its enumerator. Options, planner bytes,
// conformance tests, bench rows and the docs' tables follow from it.

// Outside the guard: these have toggled ones (HWY_TARGET_TOGGLE), so that a file that is compiled once per SIMD target
// gets each codec's kernels once per target.
#include "codec/bf16.h"
#include "codec/f16.h"
#include "codec/f32.h"

#ifndef KVARTO_CODEC_LIST_H_
#define KVARTO_CODEC_LIST_H_

#include <span>
#include <string_view>

#include "codec/codec.h"

// KVARTO_CODECS(X) expands X(name, struct) once per codec: `name` is the enumerator of KvDtype, `struct` the file's
// type.
#define KVARTO_CODECS(X) \
  X(f32, CodecF32)       \
  X(f16, CodecF16)       \
  X(bf16, CodecBf16)

namespace kvarto {

std::span<const CodecInfo> codec_list();  // in the order of KvDtype
const CodecInfo& codec_info(KvDtype dtype);
const CodecInfo* find_codec(std::string_view name);  // name or alias; nullptr: unknown

}  // namespace kvarto
#endif  // KVARTO_CODEC_LIST_H_
