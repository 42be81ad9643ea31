// The paged cache under one's own model code: a toy model of one attention layer whose q, k and v are made up from
// token ids. Two prompts share a prefix; the second finds its blocks, and its output has the same bits as without a
// cache.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kvarto/kv_cache.h"

namespace {

constexpr uint32_t kHeads = 4, kKvHeads = 2, kDim = 32;

// A stand-in for a model's projections: `n` floats that depend on the token, its position and what they are for.
void project(kvarto::TokenId token, uint64_t position, int purpose, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = std::sin(0.1f * static_cast<float>(token + 1) * static_cast<float>(i + 1) +
                      0.01f * static_cast<float>(position) + static_cast<float>(purpose));
  }
}

// Computes tokens [sequence.length(), tokens.size()); returns the last token's attention output.
std::vector<float> compute(kvarto::KvCache& cache, kvarto::CacheKernels& kernels, kvarto::KvSequence& sequence,
                           const std::vector<kvarto::TokenId>& tokens) {
  const uint64_t first = sequence.length();
  const size_t n = tokens.size() - first;
  std::vector<float> q(n * kHeads * kDim), k(n * kKvHeads * kDim), v(k.size()), out(q.size());
  for (size_t i = 0; i < n; ++i) {
    project(tokens[first + i], first + i, 0, kHeads * kDim, &q[i * kHeads * kDim]);
    project(tokens[first + i], first + i, 1, kKvHeads * kDim, &k[i * kKvHeads * kDim]);
    project(tokens[first + i], first + i, 2, kKvHeads * kDim, &v[i * kKvHeads * kDim]);
  }
  if (const kvarto::Status status = cache.reserve(sequence, static_cast<uint32_t>(n)); !status) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    std::exit(1);
  }
  kernels.append(cache, sequence, 0, k.data(), v.data());
  kernels.attend(cache, sequence, 0, {.heads = kHeads, .scale = 1.0f / std::sqrt(float{kDim})}, q.data(), out.data());
  cache.commit(sequence, {tokens.data() + first, n});
  return {out.end() - kHeads * kDim, out.end()};
}

}  // namespace

int main() {
  const kvarto::KvGeometry geometry{{{.kv_heads = kKvHeads, .key_dim = kDim, .value_dim = kDim}}};
  const auto layout = kvarto::KvLayout::make(
      geometry, {.block_tokens = 16, .k_dtype = kvarto::KvDtype::bf16, .v_dtype = kvarto::KvDtype::bf16});
  auto made = kvarto::KvCache::create(*layout, kvarto::cpu_block_memory(), {.bytes = 1 << 20});
  if (!made) {
    std::fprintf(stderr, "%s\n", made.error().message.c_str());
    return 1;
  }
  kvarto::KvCache& cache = **made;
  kvarto::CacheKernels kernels(1);

  std::vector<kvarto::TokenId> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<kvarto::TokenId>(i * 7 % 50);
  auto cold = cache.open(tokens);
  const std::vector<float> first = compute(cache, kernels, cold.sequence, tokens);
  auto warm = cache.open(tokens);
  const std::vector<float> second = compute(cache, kernels, warm.sequence, tokens);
  std::printf("cold computed %zu tokens, warm found %llu in the cache; outputs %s\n", tokens.size(),
              static_cast<unsigned long long>(warm.match.tokens), first == second ? "are the same bits" : "DIFFER");
  return first == second ? 0 : 1;
}
