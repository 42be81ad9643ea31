#include "cli/bench_row.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;

double share_of_bound(const BenchRow& row) {
  return row.bound_tokens_per_s > 0 ? row.tokens_per_s / row.bound_tokens_per_s : 0.0;
}
const char* bound_by(const BenchRow& row) { return row.bound_by_memory ? "memory" : "arithmetic"; }

Json row_json(const BenchRow& row) {
  return {{"test", row.test},
          {"depth", row.depth},
          {"batch", row.batch},
          {"threads", row.threads},
          {"kv_dtype", row.kv_dtype},
          {"tokens_per_s", row.tokens_per_s},
          {"share_of_bandwidth", row.share_of_bandwidth},
          {"bound_tokens_per_s", row.bound_tokens_per_s},
          {"bound_by", bound_by(row)},
          {"share_of_bound", share_of_bound(row)},
          {"logits_sha256", row.logits_sha256},
          {"bandwidth_gb_s", row.rates.bytes / kGiga},
          {"fma_gflops", row.rates.f32 / kGiga},
          {"int8_gops", row.rates.int8 / kGiga}};
}

}  // namespace

std::string bench_head() {
  char text[200];
  std::snprintf(text, sizeof text, "%-16s %7s %6s %8s  %-10s %12s %10s %12s %-10s %8s  %s\n", "test", "depth", "batch",
                "threads", "kv_dtype", "tokens/s", "bandwidth", "bound", "by", "share", "logits");
  return text;
}

std::string bench_line(const BenchRow& row) {
  char text[300];
  std::snprintf(text, sizeof text, "%-16s %7llu %6u %8d  %-10s %12.2f %8.1f %% %12.1f %-10s %6.1f %%  %.12s\n",
                row.test.c_str(), static_cast<unsigned long long>(row.depth), row.batch, row.threads,
                row.kv_dtype.c_str(), row.tokens_per_s, 100.0 * row.share_of_bandwidth, row.bound_tokens_per_s,
                bound_by(row), 100.0 * share_of_bound(row), row.logits_sha256.c_str());
  return text;
}

std::string bench_rates(int threads, const Rates& rates) {
  char text[200];
  std::snprintf(text, sizeof text,
                "this machine, %d thread%s: reads %.1f GB/s, %.0f GFLOP/s of FMA, %.0f GOP/s of int8\n", threads,
                threads == 1 ? "" : "s", rates.bytes / kGiga, rates.f32 / kGiga, rates.int8 / kGiga);
  return text;
}

std::string bench_json(const std::vector<BenchRow>& rows) {
  Json list = Json::array();
  for (const BenchRow& row : rows) list.push_back(row_json(row));
  return list.dump(2) + "\n";
}

std::string_view bench_explanation() {
  return "Columns:\n"
         "  test       pp512: prompts of 512 tokens, until the first token; tg128: 128 tokens generated behind the "
         "first\n"
         "  depth      tokens already in the cache, which the sequences of a batch share\n"
         "  tokens/s   of all sequences together; the median of -r runs, after one that is not timed\n"
         "  bandwidth  weights (once a step) and KV (once a step and sequence) read per second, as a share of what as\n"
         "             many threads read from memory on this machine, measured in the same run\n"
         "  bound, by  tokens per second that the machine's rates allow. Either memory: those bytes at that bandwidth; "
         "or\n"
         "             arithmetic: multiply-adds of quantised weights at the measured int8 rate, those of other "
         "weights\n"
         "             and of attention at the measured FMA rate; whichever takes longer\n"
         "  share      tokens/s of bound; of what fits the caches it may be more than all\n"
         "  logits     start of the SHA-256 of the logits that chose the tokens. Equal for runs that differ in "
         "threads,\n"
         "             SIMD target, steps (--max-num-batched-tokens) or blocks; not for another -p, -n, -d, -b, "
         "--seed,\n"
         "             KV dtype or --reference\n"
         "--json has the same per row, and the machine's rates. `kvarto bench kernels --help`: the parts, one by one.";
}

}  // namespace kvarto
