#include "cli/figures.h"

#include <algorithm>
#include <cstdio>

#include "cli/output.h"

namespace kvarto {
namespace {

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string rate(const char* what, double bytes_per_s, double bandwidth) {
  std::string text = std::string(what) + " " + human_bytes(bytes_per_s) + "/s";
  if (bandwidth > 0) text += format(" (%.1f %%)", 100.0 * bytes_per_s / bandwidth);
  return text;
}

}  // namespace

double kv_read_bytes(const KvLayout& layout, uint64_t length) {
  double bytes = 0;
  for (const KvGroup& group : layout.groups()) {
    const uint64_t seen = group.kind == GroupKind::window ? std::min<uint64_t>(length, group.window) : length;
    bytes += static_cast<double>(seen) * static_cast<double>(group.block_bytes) / layout.block_tokens();
  }
  return bytes;
}

Figures make_figures(Engine& engine, const Generation& generation) {
  const RequestResult& result = generation.result;
  const KvLayout& layout = engine.cache().layout();
  Figures f;
  f.prompt_tokens = result.prompt_tokens;
  f.cached_tokens = result.cached_tokens;
  f.completion_tokens = result.completion_tokens;
  f.ttft_ms = result.ttft_ms;
  f.tpot_ms = result.tpot_ms;
  f.blocks_used = generation.blocks_used;
  f.blocks_total = engine.stats().kv.blocks_total;
  f.waste = generation.waste;
  const size_t samples = std::max<size_t>(result.samples.size(), 1);
  if (result.tpot_ms > 0) {
    const double steps_per_s = 1000.0 / result.tpot_ms;
    const uint64_t middle = result.prompt_tokens + result.completion_tokens / samples / 2;
    f.tokens_per_s = steps_per_s * static_cast<double>(samples);
    f.weight_bytes_per_s = steps_per_s * static_cast<double>(engine.info().pass_bytes);
    f.kv_bytes_per_s = f.tokens_per_s * kv_read_bytes(layout, middle);
  }
  return f;
}

std::string describe(const Figures& f, double bandwidth) {
  std::string text =
      format("prompt %llu tokens (%llu cached), generated %llu", static_cast<unsigned long long>(f.prompt_tokens),
             static_cast<unsigned long long>(f.cached_tokens), static_cast<unsigned long long>(f.completion_tokens));
  text += format("\nTTFT %.1f ms, TPOT %.2f ms, %.1f tokens/s\n", f.ttft_ms, f.tpot_ms, f.tokens_per_s);
  text += "read: " + rate("weights", f.weight_bytes_per_s, bandwidth) + ", " + rate("KV", f.kv_bytes_per_s, bandwidth);
  if (bandwidth > 0) text += " of " + human_bytes(bandwidth) + "/s measured";
  text += format("\nKV blocks %llu of %llu, waste %.1f %%", static_cast<unsigned long long>(f.blocks_used),
                 static_cast<unsigned long long>(f.blocks_total), 100.0 * f.waste);
  return text;
}

std::string describe_turn(const Figures& f) {
  return format("[prompt %llu (%llu cached), generated %llu, TTFT %.0f ms, %.1f tokens/s]",
                static_cast<unsigned long long>(f.prompt_tokens), static_cast<unsigned long long>(f.cached_tokens),
                static_cast<unsigned long long>(f.completion_tokens), f.ttft_ms, f.tokens_per_s);
}

}  // namespace kvarto
