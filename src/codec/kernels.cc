#include "codec/kernels.h"

#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h: each is compiled once per target.
#include "base/simd.h"
#include "codec/list.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

// One kernel per number of rows.
template <class K, size_t... kLess>
constexpr DirectKernels direct_kernels(std::index_sequence<kLess...>) {
  return {.rows = sizeof...(kLess), .score = {K::template score<kLess + 1>...}, .mix = {K::template mix<kLess + 1>...}};
}
template <class K>
constexpr DirectKernels direct_kernels() {
  return direct_kernels<K>(std::make_index_sequence<K::kMaxRows>());
}

template <class Codec>
constexpr CodecKernels table_row() {
  using K = Kernels<Codec>;
  return {.sub_tile_bytes =
              [](size_t padded_dims) { return Codec::info().tile_bytes(16, static_cast<uint32_t>(padded_dims)); },
          .direct = direct_kernels<K>(),
          .unseal_scored = K::unseal_scored,
          .unseal_mixed = K::unseal_mixed,
          .write_scored = K::write_scored,
          .write_mixed = K::write_mixed,
          .seal = K::seal};
}

#define KVARTO_ROW(name, type) table_row<type>(),
constexpr std::array kCodecKernels = {KVARTO_CODECS(KVARTO_ROW)};
#undef KVARTO_ROW

constexpr DirectKernels kUnsealedKernels = direct_kernels<UnsealedKernels>();

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/dispatch.h"

namespace kvarto {
namespace {

using Table = std::array<CodecKernels, std::size(N_SCALAR::kCodecKernels)>;
KVARTO_TARGET_TABLE(Table, codec_table, kCodecKernels);

}  // namespace

const CodecKernels& codec_kernels(SimdTarget target, KvDtype dtype) {
  return codec_table(target)[static_cast<size_t>(dtype)];
}
KVARTO_TARGET_TABLE(DirectKernels, unsealed_kernels, kUnsealedKernels);

}  // namespace kvarto
#endif  // HWY_ONCE
