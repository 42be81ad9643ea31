#include "server/stats_line.h"

#include <cmath>
#include <cstdio>

namespace kvarto {
namespace {

std::string with_commas(uint64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string concurrency_text(uint32_t tokens, double concurrency) {
  return "Maximum concurrency for " + with_commas(tokens) + " tokens per request: " + fixed(concurrency, 2) + "x";
}

double rate(uint64_t before, uint64_t now, double seconds) {
  return seconds > 0 && now > before ? static_cast<double>(now - before) / seconds : 0.0;
}

}  // namespace

KvCapacity kv_capacity(const KvLayout& layout, size_t arena_bytes, uint32_t max_model_len, uint32_t chunk_tokens) {
  KvCapacity capacity{.max_model_len = max_model_len};
  const size_t one = layout.bytes_for_sequence(max_model_len, chunk_tokens);
  if (one == 0) return capacity;
  capacity.concurrency = static_cast<double>(arena_bytes) / static_cast<double>(one);
  capacity.tokens = static_cast<uint64_t>(std::floor(capacity.concurrency * max_model_len));
  return capacity;
}

std::string kv_cache_size_line(const KvCapacity& capacity, std::string_view device) {
  return std::string(device) + " KV cache size: " + with_commas(capacity.tokens) + " tokens, " +
         concurrency_text(capacity.max_model_len, capacity.concurrency);
}

std::string kv_typical_line(const KvLayout& layout, size_t arena_bytes, uint32_t typical_tokens,
                            uint32_t chunk_tokens) {
  return concurrency_text(typical_tokens, kv_capacity(layout, arena_bytes, typical_tokens, chunk_tokens).concurrency);
}

StatsLine stats_line(const StatsNumbers& previous, const StatsNumbers& now, double seconds, std::string_view device) {
  const double prompt = rate(previous.computed_prompt_tokens, now.computed_prompt_tokens, seconds);
  const double generation = rate(previous.generated_tokens, now.generated_tokens, seconds);
  StatsLine line;
  line.quiet = prompt == 0 && generation == 0;
  line.text = "Engine 000: Avg prompt throughput: " + fixed(prompt, 1) +
              " tokens/s, Avg generation throughput: " + fixed(generation, 1) +
              " tokens/s, Running: " + std::to_string(now.running) + " reqs, Waiting: " + std::to_string(now.waiting) +
              " reqs";
  if (now.preemptions > previous.preemptions) {
    line.text += ", Preemptions: " + std::to_string(now.preemptions - previous.preemptions);
  }
  line.text += ", " + std::string(device) + " KV cache usage: " + fixed(now.kv_usage * 100, 1) + "%";
  if (now.recent_query_tokens > 0) {
    const double hits = static_cast<double>(now.recent_hit_tokens) / static_cast<double>(now.recent_query_tokens);
    line.text += ", Prefix cache hit rate: " + fixed(hits * 100, 1) + "%";
  }
  return line;
}

}  // namespace kvarto
