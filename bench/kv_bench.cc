// Speed of the cache's parts on one thread: blocks taken and given back, sequences that grow, prefix hits, sealing.
// (The kernels that compute have rows in `kvarto bench kernels`.) Shapes are SmolLM2-135M's (3 KV heads, 64 dims).
//   cmake --preset bench && cmake --build --preset bench --target kv_bench && build/bench/kv_bench
#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "codec/kernels.h"
#include "codec/list.h"
#include "kv/block_pool.h"
#include "kv/layout.h"
#include "kvarto/kv_cache.h"

namespace kvarto {
namespace {

constexpr uint32_t kKvHeads = 3, kDim = 64;
constexpr uint32_t kChunk = 512;  // tokens computed at once while a cache is filled

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
      add("seal" + which, [=](auto& state) { bench_seal(state, target, dtype); });
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
