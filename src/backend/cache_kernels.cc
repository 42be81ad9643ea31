#include "backend/backend.h"
#include "base/check.h"
#include "kvarto/kv_cache.h"

namespace kvarto {

struct CacheKernels::Impl {
  std::shared_ptr<Backend> backend;
};

CacheKernels::CacheKernels(int threads) : impl_(new Impl{cpu_backend({.threads = threads, .ledger = nullptr})}) {}
CacheKernels::~CacheKernels() = default;

void CacheKernels::append(const KvCache& cache, const KvSequence& sequence, uint32_t layer, const float* k,
                          const float* v) {
  const KvLayout::Place place = cache.layout().place(layer);
  const KvView& view = cache.views(sequence)[place.group];
  const KvGroupLayer& kv = view.group->layers[place.index];
  CHECK(has_keys_and_values(kv), "layers with a latent plane are not built");
  const AppendRows rows{.view = &view,
                        .layer = place.index,
                        .first_position = sequence.length(),
                        .count = sequence.reserved(),
                        .k = k,
                        .k_stride = size_t{kv.kv_heads} * kv.planes[0].dims,
                        .v = v,
                        .v_stride = size_t{kv.kv_heads} * kv.planes[1].dims};
  impl_->backend->append({&rows, 1});
}

void CacheKernels::attend(const KvCache& cache, const KvSequence& sequence, uint32_t layer, const AttentionShape& shape,
                          const float* q, float* out) {
  const KvLayout::Place place = cache.layout().place(layer);
  const KvView& view = cache.views(sequence)[place.group];
  const KvGroupLayer& kv = view.group->layers[place.index];
  CHECK(has_keys_and_values(kv), "layers with a latent plane are not built");
  CHECK(shape.heads > 0 && shape.heads % kv.kv_heads == 0, "query heads must be a multiple of the layer's KV heads");
  const AttendRows rows{.view = &view,
                        .layer = place.index,
                        .first_position = sequence.length(),
                        .count = sequence.reserved(),
                        .q = q,
                        .q_stride = size_t{shape.heads} * kv.planes[0].dims,
                        .out = out,
                        .out_stride = size_t{shape.heads} * kv.planes[1].dims};
  impl_->backend->attend({&rows, 1}, shape);
}

}  // namespace kvarto
