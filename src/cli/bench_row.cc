#include "cli/bench_row.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMega = 1e6, kGiga = 1e9;

// Of the time that the row took, the shares that its parts take at the machine's rates.
struct Shares {
  double memory, int8, f32, bound;
};
Shares shares_of(const BenchRow& row) {
  const Bound bound = bound_of(row.token_cost, row.rates);
  const double speed = row.tokens_per_s;
  return {speed * bound.memory, speed * bound.int8, speed * bound.f32, speed * bound.seconds()};
}

bool measured(double work, double rate) { return work == 0 || rate > 0; }

double bound_tokens_per_s(const BenchRow& row) {
  const double seconds = bound_of(row.token_cost, row.rates).seconds();
  return seconds > 0 ? 1 / seconds : 0.0;
}
const char* bound_by(const BenchRow& row) {
  return bound_of(row.token_cost, row.rates).by_memory() ? "memory" : "arithmetic";
}
double int8_operations(const BenchRow& row) { return row.token_cost.int8 + row.token_cost.int8_few; }

Json number(bool known, double value) { return known ? Json(value) : Json(nullptr); }
Json giga(double rate) { return number(rate > 0, rate / kGiga); }

Json row_json(const BenchRow& row) {
  const Shares shares = shares_of(row);
  const Cost& cost = row.token_cost;
  const bool bounded = bound_known(cost, row.rates);
  return {{"test", row.test},
          {"depth", row.depth},
          {"batch", row.batch},
          {"threads", row.threads},
          {"kv_dtype", row.kv_dtype},
          {"tokens_per_s", row.tokens_per_s},
          {"bytes_per_token", row.token_cost.bytes},
          {"int8_ops_per_token", int8_operations(row)},
          {"f32_ops_per_token", row.token_cost.f32},
          {"share_of_bandwidth", number(memory_known(cost, row.rates), shares.memory)},
          {"share_of_int8", number(int8_known(cost, row.rates), shares.int8)},
          {"share_of_fma", number(f32_known(cost, row.rates), shares.f32)},
          {"bound_tokens_per_s", number(bounded, bound_tokens_per_s(row))},
          {"bound_by", bounded ? Json(bound_by(row)) : Json(nullptr)},
          {"share_of_bound", number(bounded, shares.bound)},
          {"logits_sha256", row.logits_sha256},
          {"bandwidth_gb_s", giga(row.rates.bytes)},
          {"fma_gflops", giga(row.rates.f32)},
          {"int8_gops", giga(row.rates.int8)},
          {"int8_few_gops", giga(row.rates.int8_few)},
          {"sha256_gb_s", giga(row.rates.sha256)}};
}

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char text[300];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

// Cells of `width` columns.
std::string cell(int width, int digits, bool known, double value) {
  return known ? format("%*.*f", width, digits, value) : format("%*s", width, "-");
}
std::string percent(int width, bool known, double share) {
  return known ? format("%*.1f %%", width - 2, 100 * share) : format("%*s", width, "-");
}

// Which row it is: begins both tables.
std::string key(const BenchRow& row) {
  return format("%-16s %7llu %6u %8d", row.test.c_str(), static_cast<unsigned long long>(row.depth), row.batch,
                row.threads);
}
std::string key_head() { return format("%-16s %7s %6s %8s", "test", "depth", "batch", "threads"); }

}  // namespace

bool memory_known(const Cost& cost, const Rates& rates) { return measured(cost.bytes, rates.bytes); }
bool int8_known(const Cost& cost, const Rates& rates) {
  return measured(cost.int8, rates.int8) && measured(cost.int8_few, rates.int8_few);
}
bool f32_known(const Cost& cost, const Rates& rates) { return measured(cost.f32, rates.f32); }
bool bound_known(const Cost& cost, const Rates& rates) {
  return memory_known(cost, rates) && int8_known(cost, rates) && f32_known(cost, rates);
}

std::string bench_head() { return key_head() + format("  %-10s %12s  %s\n", "kv_dtype", "tokens/s", "logits"); }

std::string bench_line(const BenchRow& row) {
  return key(row) +
         format("  %-10s %12.2f  %.12s\n", row.kv_dtype.c_str(), row.tokens_per_s, row.logits_sha256.c_str());
}

std::string bounds_head() {
  return key_head() + format(" %9s %9s %9s %9s %7s %7s %10s %-10s %7s\n", "MB", "int8 Mop", "f32 Mop", "bandwidth",
                             "int8", "fma", "bound", "by", "share");
}

std::string bounds_line(const BenchRow& row) {
  const Shares shares = shares_of(row);
  const Cost& cost = row.token_cost;
  const bool bounded = bound_known(cost, row.rates);
  return key(row) + format(" %9.2f %9.1f %9.1f ", cost.bytes / kMega, int8_operations(row) / kMega, cost.f32 / kMega) +
         percent(9, memory_known(cost, row.rates), shares.memory) + " " +
         percent(7, int8_known(cost, row.rates), shares.int8) + " " +
         percent(7, f32_known(cost, row.rates), shares.f32) + " " + cell(10, 1, bounded, bound_tokens_per_s(row)) +
         format(" %-10s ", bounded ? bound_by(row) : "-") + percent(7, bounded, shares.bound) + "\n";
}

std::string bench_rates(int threads, const Rates& rates) {
  const auto giga_cell = [](int digits, double rate) { return cell(0, digits, rate > 0, rate / kGiga); };
  return format("this machine, %d thread%s: ", threads, threads == 1 ? "" : "s") + "reads " +
         giga_cell(1, rates.bytes) + " GB/s, " + giga_cell(0, rates.f32) + " GFLOP/s of FMA, " +
         giga_cell(0, rates.int8) + " GOP/s of int8, " + giga_cell(0, rates.int8_few) + " for at most 16 rows\n";
}

std::string bench_json(const std::vector<BenchRow>& rows) {
  Json list = Json::array();
  for (const BenchRow& row : rows) list.push_back(row_json(row));
  return list.dump(2) + "\n";
}

std::string_view bench_explanation() {
  return "Columns of what was measured:\n"
         "  test       pp512: prompts of 512 tokens, until the first token; tg128: 128 tokens generated behind the "
         "first\n"
         "  depth      tokens already in the cache, which the sequences of a batch share\n"
         "  tokens/s   of all sequences together; the median of -r runs, after one that is not timed\n"
         "  logits     start of the SHA-256 of the logits that chose the tokens. Equal for runs that differ in "
         "threads,\n"
         "             SIMD target, steps (--max-num-batched-tokens) or blocks; not for another -p, -n, -d, -b, "
         "--seed,\n"
         "             KV dtype or --reference\n"
         "Columns of what bounds it, at rates that are measured before and after the rows (the larger counts; a rate\n"
         "is a measurement with noise, so a share may exceed 100 %; -, or null in JSON, is what could not be "
         "measured):\n"
         "  MB         read per token: weights once a step, KV once a step and sequence\n"
         "  int8 Mop,  million operations per token, a multiply-add being two: of quantised weights; of other weights\n"
         "  f32 Mop    and of attention\n"
         "  bandwidth  of the time taken, what reading those bytes takes at this machine's read rate\n"
         "  int8       likewise the int8 operations at their rate: that of the kernel for at most 16 rows or for "
         "more\n"
         "  fma        likewise the float operations at the rate of fused multiply-adds\n"
         "  bound, by  tokens per second that these allow: memory, or arithmetic (int8 and fma together)\n"
         "  share      tokens/s of bound; of what fits the caches it may be more than all\n"
         "--json has the same per row, and the machine's rates. `kvarto bench kernels --help`: the parts, one by one.";
}

}  // namespace kvarto
