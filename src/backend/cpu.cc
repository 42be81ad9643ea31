#include <algorithm>

#include "backend/backend.h"
#include "backend/cpu_matrix.h"
#include "backend/cpu_memory.h"
#include "base/check.h"
#include "base/thread_pool.h"

namespace kvarto {
namespace {

// Units are fixed by shape: so many groups of 16 outputs, so many rows or vectors each. A unit of weights is large
// enough to be worth claiming, small enough that the last one delays nobody; kernels read four groups side by side.
constexpr size_t kUnitBytes = 64 << 10, kGroupsSideBySide = 4, kMostGroups = 16;
size_t groups_per_unit(const CpuMatrix& w) {
  const size_t fit = kUnitBytes / w.group_bytes() / kGroupsSideBySide * kGroupsSideBySide;
  return std::clamp(fit, kGroupsSideBySide, kMostGroups);
}
constexpr size_t kRowsPerUnit = 8;
constexpr size_t kVectorsPerUnit = 64;

// Of quantised matrices; floats need none.
size_t matmul_scratch_bytes(const StepShape& largest, int threads) {
  return whole_lines(quant_rows_bytes(largest.rows, largest.inputs)) +
         static_cast<size_t>(threads) * whole_lines(quant_scratch_bytes(largest.inputs));
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : ledger_(options.ledger),
        memory_(std::make_shared<CpuMemory>(options.ledger)),
        target_(options.target),
        reference_(options.reference),
        ops_(ops_for(options.target)),
        pool_(cpu_threads(options.threads)) {}

  ~CpuBackend() override {
    if (ledger_ != nullptr) ledger_->release(MemoryTag::weights, vector_bytes_);
  }

  std::shared_ptr<BlockMemory> memory() override { return memory_; }
  int threads() const override { return pool_.threads(); }
  SimdTarget target() const override { return target_; }

  Result<std::unique_ptr<Matrix>> load_matrix(const GgufFile& file, const GgufTensor& tensor) override;
  Result<std::vector<float>> load_vector(const GgufFile& file, const GgufTensor& tensor) override;

  Status reserve(const StepShape& largest) override {
    for (const AttendSizes& sizes : largest.attention) RETURN_IF_ERROR(scratch_.reserve(sizes, pool_.threads()));
    if (reference_) return {};
    return grow(matmul_scratch_, matmul_scratch_bytes(largest, pool_.threads()), MemoryTag::activations, ledger_);
  }

  void matmul(const float* x, size_t rows, std::span<const Product> products) override {
    CHECK(!products.empty(), "a matmul without a matrix");
    const size_t inputs = products[0].w->inputs();
    QuantRows quantised{.rows = rows, .inputs = inputs};
    std::byte* worker_scratch = nullptr;
    size_t worker_bytes = 0;
    if (std::ranges::any_of(products, [](const Product& p) { return matrix(p).quantised() != nullptr; })) {
      const Status grown = reserve({.rows = rows, .inputs = inputs, .attention = {}});
      CHECK(grown.has_value(), grown ? "" : grown.error().message);
      quantised = quant_rows_at(matmul_scratch_.data(), rows, inputs);
      worker_scratch = matmul_scratch_.data() + whole_lines(quant_rows_bytes(rows, inputs));
      worker_bytes = whole_lines(quant_scratch_bytes(inputs));
      const QuantOps& ops = quant_ops(target_);
      // Whole tiles each: two workers in one tile would write to the same cache lines.
      in_units(rows, kQuantTile, [&](size_t first, size_t last) { ops.quantise(x, first, last, quantised); });
    }

    size_t units = 0;
    for (const Product& p : products) units += units_of(matrix(p));
    pool_.run(units, [&](size_t unit, int worker) {
      const Product* p = products.data();
      for (; unit >= units_of(matrix(*p)); ++p) unit -= units_of(matrix(*p));
      const CpuMatrix& w = matrix(*p);
      const size_t per_unit = groups_per_unit(w), first = unit * per_unit;
      w.multiply(target_, x, quantised, p->bias, first, std::min(first + per_unit, w.groups()), p->y,
                 worker_scratch + static_cast<size_t>(worker) * worker_bytes);
    });
  }

  void embed(std::span<const TokenId> tokens, const Matrix& table, float scale, float* out) override {
    const auto& rows = static_cast<const CpuMatrix&>(table);
    each_row(tokens.size(),
             [&](size_t r) { rows.gather_row(static_cast<size_t>(tokens[r]), scale, out + r * rows.inputs()); });
  }

  void rms_norm(const float* x, size_t vectors, size_t n, const float* weight, float eps, float* y) override {
    each(vectors, kVectorsPerUnit, [&](size_t i) { ops_.rms_norm(x + i * n, weight, eps, n, y + i * n); });
  }

  void rope_rows(const RopeTable& table, std::span<const uint64_t> positions, float* cos, float* sin) override {
    const size_t pairs = table.pairs();
    each_row(positions.size(), [&](size_t r) { table.fill(positions[r], cos + r * pairs, sin + r * pairs); });
  }

  void rope(float* x, size_t rows, size_t heads, size_t head_dim, RopePairs style, const RopeRows& table) override {
    each_row(rows, [&](size_t r) {
      ops_.rope(x + r * heads * head_dim, heads, head_dim, table.pairs, style, table.cos + r * table.pairs,
                table.sin + r * table.pairs);
    });
  }

  void silu_mul(const float* gate, const float* up, size_t rows, size_t n, float* out) override {
    each_row(rows, [&](size_t r) { ops_.silu_mul(gate + r * n, up + r * n, n, out + r * n); });
  }
  void gelu_mul(const float* gate, const float* up, size_t rows, size_t n, float* out) override {
    each_row(rows, [&](size_t r) { ops_.gelu_mul(gate + r * n, up + r * n, n, out + r * n); });
  }
  void add(const float* a, size_t rows, size_t n, float* b) override {
    each_row(rows, [&](size_t r) { ops_.add(a + r * n, n, b + r * n); });
  }
  void soft_cap(float* x, size_t rows, size_t n, float cap) override {
    each_row(rows, [&](size_t r) { ops_.soft_cap(x + r * n, n, cap); });
  }

  void append(std::span<const AppendRows> sequences) override {
    saturated_ += kvarto::append(target_, sequences, pool_);
  }
  uint64_t saturated_values() const override { return saturated_; }
  void attend(std::span<const AttendRows> sequences, const AttentionShape& shape) override {
    kvarto::attend(target_, sequences, shape, pool_, scratch_);
  }

 private:
  static const CpuMatrix& matrix(const Product& p) { return static_cast<const CpuMatrix&>(*p.w); }
  static size_t units_of(const CpuMatrix& w) { return (w.groups() + groups_per_unit(w) - 1) / groups_per_unit(w); }

  template <typename Body>
  void in_units(size_t count, size_t per_unit, const Body& body) {  // body(first, last)
    pool_.run((count + per_unit - 1) / per_unit,
              [&](size_t unit, int) { body(unit * per_unit, std::min(count, (unit + 1) * per_unit)); });
  }
  template <typename Body>
  void each(size_t count, size_t per_unit, const Body& body) {
    in_units(count, per_unit, [&](size_t first, size_t last) {
      for (size_t i = first; i < last; ++i) body(i);
    });
  }
  template <typename Body>
  void each_row(size_t rows, const Body& body) {
    each(rows, kRowsPerUnit, body);
  }

  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<BlockMemory> memory_;
  SimdTarget target_;
  bool reference_;
  const Ops& ops_;
  ThreadPool pool_;
  Slab matmul_scratch_;  // a step's quantised rows, then each worker's unpacked weights
  AttendScratch scratch_{ledger_};
  uint64_t saturated_ = 0;
  size_t vector_bytes_ = 0;  // of norms and biases, charged to the ledger
};

Result<std::unique_ptr<Matrix>> CpuBackend::load_matrix(const GgufFile& file, const GgufTensor& tensor) {
  return load_cpu_matrix(file, tensor, reference_, ledger_, pool_);
}

Result<std::vector<float>> CpuBackend::load_vector(const GgufFile& file, const GgufTensor& tensor) {
  if (ledger_ != nullptr) {
    RETURN_IF_ERROR(ledger_->charge(MemoryTag::weights, tensor.elements * sizeof(float)));
    vector_bytes_ += tensor.elements * sizeof(float);
  }
  return read_vector(file, tensor);
}

}  // namespace

std::shared_ptr<Backend> cpu_backend(const CpuBackendOptions& options) { return std::make_shared<CpuBackend>(options); }

int cpu_threads(int asked) { return asked > 0 ? asked : static_cast<int>(usable_cores().size()); }

size_t cpu_scratch_bytes(const StepShape& largest, int threads, bool reference) {
  size_t attention = 0;
  for (const AttendSizes& sizes : largest.attention)
    attention = std::max(attention, attend_scratch_bytes(sizes, threads));
  return (reference ? 0 : matmul_scratch_bytes(largest, threads)) + attention;
}

}  // namespace kvarto
