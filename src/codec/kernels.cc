#include "codec/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h: each is compiled once per target.
#include "base/simd.h"
#include "codec/list.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

template <class Codec>
void score_rows(size_t rows, const float* q, size_t q_stride, size_t dims, const std::byte* sub_tile, float* out,
                size_t out_stride) {
  using K = Kernels<Codec>;
  switch (rows) {
    case 1:
      return K::template score<1>(q, q_stride, dims, sub_tile, out, out_stride);
    case 2:
      return K::template score<2>(q, q_stride, dims, sub_tile, out, out_stride);
    case 3:
      return K::template score<3>(q, q_stride, dims, sub_tile, out, out_stride);
    case 4:
      return K::template score<4>(q, q_stride, dims, sub_tile, out, out_stride);
    case 5:
      return K::template score<5>(q, q_stride, dims, sub_tile, out, out_stride);
    case 6:
      return K::template score<6>(q, q_stride, dims, sub_tile, out, out_stride);
    case 7:
      return K::template score<7>(q, q_stride, dims, sub_tile, out, out_stride);
    default:
      return K::template score<8>(q, q_stride, dims, sub_tile, out, out_stride);
  }
}

template <class Codec>
void mix_rows(size_t rows, const float* p, size_t p_stride, size_t first, size_t last, size_t padded_dims,
              const std::byte* sub_tile, float* out, size_t out_stride) {
  using K = Kernels<Codec>;
  switch (rows) {
    case 1:
      return K::template mix<1>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    case 2:
      return K::template mix<2>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    case 3:
      return K::template mix<3>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    case 4:
      return K::template mix<4>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    case 5:
      return K::template mix<5>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    case 6:
      return K::template mix<6>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    case 7:
      return K::template mix<7>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
    default:
      return K::template mix<8>(p, p_stride, first, last, padded_dims, sub_tile, out, out_stride);
  }
}

template <class Codec>
constexpr CodecKernels table_row() {
  using K = Kernels<Codec>;
  return {.sub_tile_bytes =
              [](size_t padded_dims) { return Codec::info().tile_bytes(16, static_cast<uint32_t>(padded_dims)); },
          .score = score_rows<Codec>,
          .mix = mix_rows<Codec>,
          .write_scored = K::write_scored,
          .write_mixed = K::write_mixed,
          .seal = K::seal};
}

#define KVARTO_ROW(name, type) table_row<type>(),
constexpr std::array kCodecKernels = {KVARTO_CODECS(KVARTO_ROW)};
#undef KVARTO_ROW

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

}  // namespace kvarto
#endif  // HWY_ONCE
