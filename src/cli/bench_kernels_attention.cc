// Rows of `kvarto bench kernels` over the KV cache: attention of one token and of a chunk, and appending, for every
// codec of the list. Shapes are SmolLM2-135M's.
#include <memory>
#include <numeric>

#include "base/thread_pool.h"
#include "cli/bench_kernels.h"
#include "codec/list.h"
#include "kv/attend.h"
#include "kvarto/kv_cache.h"

namespace kvarto {
namespace {

constexpr uint32_t kHeads = 9, kKvHeads = 3, kDim = 64;
constexpr uint32_t kChunk = 512;  // tokens appended at once while a cache is filled

Result<KvLayout> layout_of(uint32_t layers, KvDtype dtype) {
  const LayerKv layer{.kind = GroupKind::full, .kv_heads = kKvHeads, .key_dim = kDim, .value_dim = kDim};
  return KvLayout::make({std::vector<LayerKv>(layers, layer)}, {.k_dtype = dtype, .v_dtype = dtype});
}

double token_bytes(KvDtype dtype) {  // of one layer
  const Result<KvLayout> layout = layout_of(1, dtype);
  return layout ? static_cast<double>(layout->bytes_per_token()) : 0.0;
}

// `history` tokens in the cache and `rows` more reserved and appended. Each call takes the next layer.
class Scene {
 public:
  // As many layers as it takes to push each out of the caches before its turn comes again, or one.
  static Result<std::shared_ptr<Scene>> make(SimdTarget target, KvDtype dtype, uint32_t history, uint32_t rows,
                                             bool cold) {
    const double layer_bytes = token_bytes(dtype) * (history + rows);
    const auto layers = cold ? static_cast<uint32_t>(static_cast<double>(cold_bytes()) / layer_bytes) + 1 : 1;
    ASSIGN_OR_RETURN(const KvLayout layout, layout_of(layers, dtype));
    ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache,
                     KvCache::create(layout, cpu_block_memory(),
                                     {.bytes = (history + rows + 4 * layout.block_tokens()) * layout.bytes_per_token(),
                                      .prefix_caching = false}));
    const auto scene = std::make_shared<Scene>(target, layers, rows, std::move(cache));
    RETURN_IF_ERROR(scene->fill(history));
    return scene;
  }

  Scene(SimdTarget target, uint32_t layers, uint32_t rows, std::unique_ptr<KvCache> cache)
      : target_(target),
        layers_(layers),
        rows_(rows),
        cache_(std::move(cache)),
        sequence_(cache_->open({}).sequence),
        q_(normal_floats(size_t{rows} * kHeads * kDim, 1)),
        k_(normal_floats(size_t{kChunk} * kKvHeads * kDim, 2)),
        v_(normal_floats(size_t{kChunk} * kKvHeads * kDim, 3)),
        out_(q_.size()) {}

  void attend_rows() {
    const AttendRows rows{.view = &cache_->views(sequence_)[0],
                          .layer = next_layer(),
                          .first_position = sequence_.length(),
                          .count = rows_,
                          .q = q_.data(),
                          .q_stride = size_t{kHeads} * kDim,
                          .out = out_.data(),
                          .out_stride = size_t{kHeads} * kDim};
    attend(target_, {&rows, 1}, {.heads = kHeads, .scale = 0.125f}, pool_, scratch_);
  }
  void append_rows() { append_some(rows_); }

 private:
  Status fill(uint32_t history) {
    std::vector<TokenId> tokens(kChunk);
    std::iota(tokens.begin(), tokens.end(), 0);
    for (uint32_t done = 0; done < history; done += kChunk) {
      const uint32_t count = std::min(kChunk, history - done);
      RETURN_IF_ERROR(cache_->reserve(sequence_, count));
      for (uint32_t layer = 0; layer < layers_; ++layer) append_some(count);
      cache_->commit(sequence_, std::span(tokens).first(count));
    }
    RETURN_IF_ERROR(cache_->reserve(sequence_, rows_));
    for (uint32_t layer = 0; layer < layers_; ++layer) append_some(rows_);
    return {};
  }
  void append_some(uint32_t count) {
    const AppendRows rows{.view = &cache_->views(sequence_)[0],
                          .layer = next_layer(),
                          .first_position = sequence_.length(),
                          .count = count,
                          .k = k_.data(),
                          .k_stride = size_t{kKvHeads} * kDim,
                          .v = v_.data(),
                          .v_stride = size_t{kKvHeads} * kDim};
    append(target_, {&rows, 1}, pool_);
  }
  uint32_t next_layer() { return layer_ = (layer_ + 1) % layers_; }

  SimdTarget target_;
  uint32_t layers_, rows_, layer_ = 0;
  std::unique_ptr<KvCache> cache_;
  KvSequence sequence_;
  std::vector<float> q_, k_, v_, out_;
  ThreadPool pool_{1};
  AttendScratch scratch_;
};

KernelRow attend_row(SimdTarget target, KvDtype dtype, std::string name, uint32_t history, uint32_t rows, bool cold) {
  double pairs = 0;  // of a new token and a key that it sees
  for (uint32_t r = 0; r < rows; ++r) pairs += history + r + 1;
  return {.name = std::move(name),
          .cost = {.f32 = 2.0 * kHeads * (kDim + kDim) * pairs, .bytes = token_bytes(dtype) * (history + rows)},
          .cold = cold,
          .scene = [=]() -> Result<std::function<void()>> {
            ASSIGN_OR_RETURN(const std::shared_ptr<Scene> scene, Scene::make(target, dtype, history, rows, cold));
            return [scene] { scene->attend_rows(); };
          }};
}

KernelRow append_row(SimdTarget target, KvDtype dtype, std::string name, uint32_t rows) {
  return {.name = std::move(name),
          .cost = {.bytes = token_bytes(dtype) * rows},
          .cold = true,
          .scene = [=]() -> Result<std::function<void()>> {
            ASSIGN_OR_RETURN(const std::shared_ptr<Scene> scene, Scene::make(target, dtype, 0, rows, /*cold=*/true));
            return [scene] { scene->append_rows(); };
          }};
}

}  // namespace

std::vector<KernelRow> attention_rows(SimdTarget target) {
  std::vector<KernelRow> rows;
  for (const CodecInfo& codec : codec_list()) {
    const std::string dtype = "/" + std::string(codec.name) + "/";
    rows.push_back(append_row(target, codec.dtype, "append" + dtype + "rows:512", 512));
    for (const uint32_t keys : {512u, 4096u, 8192u}) {
      rows.push_back(attend_row(target, codec.dtype, "attend_decode" + dtype + std::to_string(keys), keys - 1, 1,
                                /*cold=*/true));
    }
    for (const uint32_t history : {0u, 2048u, 7680u}) {
      rows.push_back(attend_row(target, codec.dtype, "attend_prefill" + dtype + std::to_string(history) + "+rows:512",
                                history, 512,
                                /*cold=*/false));
    }
  }
  return rows;
}

}  // namespace kvarto
