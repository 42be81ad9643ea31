// Speed of the cache's parts on one thread (attention also on two): attention over blocks, weight matrices, blocks per
// token, prefix hits, sealing. Rows follow from the lists of codecs and SIMD targets. Shapes are SmolLM2-135M's (9
// query heads, 3 KV heads, 64 dims).
//   cmake --preset bench && cmake --build --preset bench --target kv_bench && build/bench/kv_bench
#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "codec/kernels.h"
#include "codec/list.h"
#include "kv/attend.h"
#include "kv/block_pool.h"
#include "kvarto/kv_cache.h"
#include "ops/ops.h"

namespace kvarto {
namespace {

constexpr uint32_t kHeads = 9, kKvHeads = 3, kDim = 64;
constexpr uint32_t kChunk = 512;  // tokens computed at once while a cache is filled

std::vector<float> normal(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(n);
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<TokenId> ids(size_t n) {
  std::vector<TokenId> tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>(i * 7919 % 49152);
  return tokens;
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}
void must(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

KvLayout layout_of(uint32_t layers, KvDtype dtype) {
  const LayerKv layer{.kind = GroupKind::full, .kv_heads = kKvHeads, .key_dim = kDim, .value_dim = kDim};
  return value_of(KvLayout::make({std::vector<LayerKv>(layers, layer)}, {.k_dtype = dtype, .v_dtype = dtype}));
}

std::unique_ptr<KvCache> cache_of(const KvLayout& layout, uint64_t tokens) {
  return value_of(KvCache::create(layout, cpu_block_memory(), {.bytes = (tokens + 1024) * layout.bytes_per_token()}));
}

void rate(benchmark::State& state, const char* name, double per_iteration) {
  state.counters[name] = benchmark::Counter(per_iteration * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

// --- attention

// `keys` tokens in the cache, the last `rows` of them reserved and appended, in as many layers as it takes to push each
// out of the caches before its turn comes again.
class AttendScene {
 public:
  AttendScene(SimdTarget target, KvDtype dtype, uint32_t keys, uint32_t rows, int threads)
      : target_(target),
        rows_(rows),
        layers_(layers_for(dtype, keys)),
        tokens_(ids(keys)),
        cache_(cache_of(layout_of(layers_, dtype), keys)),
        pool_(threads) {
    sequence_ = cache_->open(tokens_).sequence;
    q_ = normal(size_t{kChunk} * kHeads * kDim, 1);
    k_ = normal(size_t{kChunk} * kKvHeads * kDim, 2);
    v_ = normal(size_t{kChunk} * kKvHeads * kDim, 3);
    out_.resize(q_.size());
    const uint32_t before = keys - rows;
    for (uint32_t first = 0; first < before; first += kChunk) {
      const uint32_t count = std::min(kChunk, before - first);
      must(cache_->reserve(sequence_, count));
      for (uint32_t layer = 0; layer < layers_; ++layer) append_once(count);
      cache_->commit(sequence_, std::span(tokens_).subspan(first, count));
    }
    must(cache_->reserve(sequence_, rows));
    for (uint32_t layer = 0; layer < layers_; ++layer) append_once(rows);
  }

  void attend_once() {
    const AttendRows rows{.view = &cache_->views(sequence_)[0],
                          .layer = next_layer(),
                          .first_position = sequence_.length(),
                          .count = rows_,
                          .q = q_.data(),
                          .q_stride = size_t{kHeads} * kDim,
                          .out = out_.data(),
                          .out_stride = size_t{kHeads} * kDim};
    attend(target_, {&rows, 1}, {.heads = kHeads, .scale = 0.125f}, pool_, scratch_);
    benchmark::DoNotOptimize(out_.data());
  }
  void append_once(uint32_t count) {
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

  // Bytes of K and V that one pass over the keys of one layer reads.
  size_t bytes() const { return tokens_.size() * cache_->layout().bytes_per_token() / layers_; }
  double flop() const {
    double pairs = 0;
    for (uint32_t r = 0; r < rows_; ++r) pairs += static_cast<double>(sequence_.length() + r + 1);
    return 4.0 * kHeads * kDim * pairs;
  }

 private:
  static uint32_t layers_for(KvDtype dtype, uint32_t keys) {
    constexpr size_t kColdBytes = size_t{192} << 20;
    return static_cast<uint32_t>(kColdBytes / (keys * layout_of(1, dtype).bytes_per_token())) + 1;
  }
  uint32_t next_layer() { return layer_ = (layer_ + 1) % layers_; }

  SimdTarget target_;
  uint32_t rows_, layers_, layer_ = 0;
  std::vector<TokenId> tokens_;
  std::unique_ptr<KvCache> cache_;
  KvSequence sequence_;
  std::vector<float> q_, k_, v_, out_;
  ThreadPool pool_;
  AttendScratch scratch_;
};

void bench_attend(benchmark::State& state, SimdTarget target, KvDtype dtype, uint32_t keys, uint32_t rows,
                  int threads) {
  AttendScene scene(target, dtype, keys, rows, threads);
  for (auto _ : state) scene.attend_once();
  rate(state, "bytes/s", static_cast<double>(scene.bytes()));
  rate(state, "FLOP/s", scene.flop());
}

void bench_append(benchmark::State& state, SimdTarget target, KvDtype dtype, uint32_t rows) {
  AttendScene scene(target, dtype, kChunk, rows, 1);
  for (auto _ : state) scene.append_once(rows);
  rate(state, "tokens/s", rows);
}

// --- weights

void bench_matmul(benchmark::State& state, SimdTarget target, size_t rows) {
  constexpr size_t kOutputs = 1536, kInputs = 576;
  const std::vector<float> plain = normal(kOutputs * kInputs, 4), x = normal(rows * kInputs, 5);
  std::vector<float> packed(kOutputs * kInputs + 16), y(rows * kOutputs);
  auto* const data = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(packed.data()) + 63) / 64 * 64);
  pack_rows(plain.data(), kOutputs, kInputs, 0, data);
  const PackedMatrix matrix{kOutputs, kInputs, data};
  for (auto _ : state) {
    ops_for(target).matmul(x.data(), kInputs, rows, matrix, nullptr, 0, matrix.groups(), y.data(), kOutputs);
    benchmark::DoNotOptimize(y.data());
  }
  rate(state, "bytes/s", kOutputs * kInputs * sizeof(float));
  rate(state, "FLOP/s", 2.0 * static_cast<double>(rows) * kOutputs * kInputs);
}

// --- blocks

void bench_pool(benchmark::State& state) {
  // Addresses are computed and never used, so a made-up arena will do.
  BlockPool pool(reinterpret_cast<std::byte*>(uintptr_t{1} << 20), size_t{64} << 20, {size_t{8} << 10});
  std::vector<BlockId> held(256);
  for (auto _ : state) {
    for (BlockId& id : held) id = *pool.take(0);
    for (const BlockId id : held) pool.drop_ref(id);
  }
  rate(state, "blocks/s", static_cast<double>(held.size()));
}

// A sequence of 4,096 tokens that grows by `chunk` tokens a step: reservation, views, commit, names.
void bench_grow(benchmark::State& state, uint32_t chunk, bool prefix_caching) {
  constexpr uint32_t kTokens = 4096;
  const KvLayout layout = layout_of(30, KvDtype::f16);
  const auto cache = value_of(KvCache::create(
      layout, cpu_block_memory(), {.bytes = 2 * kTokens * layout.bytes_per_token(), .prefix_caching = prefix_caching}));
  std::vector<TokenId> tokens = ids(kTokens);
  TokenId text = 0;
  for (auto _ : state) {
    tokens[0] = ++text;  // a text of its own, so that its blocks get names
    KvSequence sequence = cache->open(tokens, {.read_cache = false}).sequence;
    for (uint32_t first = 0; first < kTokens; first += chunk) {
      must(cache->reserve(sequence, chunk));
      cache->commit(sequence, std::span(tokens).subspan(first, chunk));
    }
  }
  rate(state, "tokens/s", kTokens);
}

// A prompt whose whole beginning is found: hashes, comparison of tokens, references taken and given back.
void bench_hit(benchmark::State& state, uint32_t length) {
  const auto cache = cache_of(layout_of(30, KvDtype::f16), length);
  const std::vector<TokenId> tokens = ids(length);
  {
    KvSequence sequence = cache->open(tokens).sequence;
    for (uint32_t first = 0; first < length; first += kChunk) {
      must(cache->reserve(sequence, kChunk));
      cache->commit(sequence, std::span(tokens).subspan(first, kChunk));
    }
  }
  for (auto _ : state) {
    const KvCache::Opened opened = cache->open(tokens);
    if (opened.match.tokens != length - 16) state.SkipWithError("the prompt is not found");
  }
  rate(state, "tokens/s", length);
}

void bench_seal(benchmark::State& state, SimdTarget target, KvDtype dtype) {
  const KvLayout layout = layout_of(1, dtype);
  const KvPlane& plane = layout.groups()[0].layers[0].planes[0];
  const std::vector<std::byte> raw(plane.raw_tile_bytes);
  std::vector<std::byte> sealed(plane.tile_bytes);
  for (auto _ : state) {
    codec_kernels(target, dtype).seal(raw.data(), layout.block_tokens(), plane.padded_dims, sealed.data());
    benchmark::DoNotOptimize(sealed.data());
  }
  rate(state, "bytes/s", static_cast<double>(plane.raw_tile_bytes + plane.tile_bytes));
}

// --- the list

void add(const std::string& name, const std::function<void(benchmark::State&)>& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseRealTime();
}

void add_all() {
  for (const SimdTarget target : available_targets()) {
    const std::string where(simd_target_name(target));
    for (const CodecInfo& codec : codec_list()) {
      const KvDtype dtype = codec.dtype;
      const std::string which = "/" + std::string(codec.name) + "/" + where;
      for (const int threads : {1, 2}) {
        const std::string with = "/threads:" + std::to_string(threads);
        for (const uint32_t depth : {512u, 4096u, 8192u}) {
          add("attend_decode" + which + "/" + std::to_string(depth) + with,
              [=](auto& state) { bench_attend(state, target, dtype, depth, 1, threads); });
        }
        for (const uint32_t history : {512u, 2048u, 8192u}) {
          add("attend_prefill64" + which + "/" + std::to_string(history) + with,
              [=](auto& state) { bench_attend(state, target, dtype, history + 64, 64, threads); });
        }
      }
      for (const uint32_t rows : {1u, kChunk}) {
        add("append" + which + "/" + std::to_string(rows),
            [=](auto& state) { bench_append(state, target, dtype, rows); });
      }
      add("seal" + which, [=](auto& state) { bench_seal(state, target, dtype); });
    }
    for (const size_t rows : {size_t{1}, size_t{64}}) {
      add("matmul/" + where + "/" + std::to_string(rows), [=](auto& state) { bench_matmul(state, target, rows); });
    }
  }
  add("pool_take_drop", bench_pool);
  for (const bool named : {true, false}) {
    const std::string name = named ? "/named" : "/unnamed";
    add("grow_by_1" + name, [=](auto& state) { bench_grow(state, 1, named); });
    add("grow_by_512" + name, [=](auto& state) { bench_grow(state, kChunk, named); });
  }
  add("open_hit/16384", [](auto& state) { bench_hit(state, 16384); });
}

}  // namespace
}  // namespace kvarto

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kvarto::add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
