#include <algorithm>

#include "backend/backend.h"
#include "backend/cpu_memory.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "ops/weight/weight.h"

namespace kvarto {
namespace {

// Rows of weights dequantised to floats, in the layout of ops/ops.h.
class PackedF32 : public Matrix {
 public:
  PackedF32(size_t outputs, size_t inputs, Slab slab) : Matrix(outputs, inputs), slab_(std::move(slab)) {}
  PackedMatrix view() const { return {outputs(), inputs(), data()}; }
  float* data() const { return reinterpret_cast<float*>(slab_.data()); }
  size_t bytes() const override { return outputs() * inputs() * sizeof(float); }

 private:
  Slab slab_;
};

// Units are fixed by shape: so many groups of 16 outputs, so many rows or vectors each.
size_t groups_per_unit(size_t groups) { return std::clamp<size_t>(groups / 32, 1, 16); }
constexpr size_t kRowsPerUnit = 8;
constexpr size_t kVectorsPerUnit = 64;

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : ledger_(options.ledger),
        memory_(std::make_shared<CpuMemory>(options.ledger)),
        target_(options.target),
        ops_(ops_for(options.target)),
        pool_(options.threads > 0 ? options.threads : static_cast<int>(usable_cores().size())) {}

  ~CpuBackend() override {
    if (ledger_ != nullptr) ledger_->release(MemoryTag::weights, vector_bytes_);
  }

  std::shared_ptr<BlockMemory> memory() override { return memory_; }
  int threads() const override { return pool_.threads(); }
  SimdTarget target() const override { return target_; }

  Result<std::unique_ptr<Matrix>> load_matrix(const GgufFile& file, const GgufTensor& tensor) override;
  Result<std::vector<float>> load_vector(const GgufFile& file, const GgufTensor& tensor) override;

  void matmul(const float* x, size_t rows, const Matrix& w, const float* bias, float* y) override {
    const PackedMatrix packed = static_cast<const PackedF32&>(w).view();
    const size_t per_unit = groups_per_unit(packed.groups());
    pool_.run((packed.groups() + per_unit - 1) / per_unit, [&](size_t unit, int) {
      const size_t first = unit * per_unit;
      ops_.matmul(x, packed.inputs, rows, packed, bias, first, std::min(first + per_unit, packed.groups()), y,
                  packed.outputs);
    });
  }

  void embed(std::span<const TokenId> tokens, const Matrix& table, float scale, float* out) override {
    const PackedMatrix packed = static_cast<const PackedF32&>(table).view();
    each_row(tokens.size(), [&](size_t r) {
      ops_.gather_row(packed, static_cast<size_t>(tokens[r]), scale, out + r * packed.inputs);
    });
  }

  void rms_norm(const float* x, size_t vectors, size_t n, const float* weight, float eps, float* y) override {
    each_vector(vectors, [&](size_t i) { ops_.rms_norm(x + i * n, weight, eps, n, y + i * n); });
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
  template <typename Body>
  void in_units(size_t count, size_t per_unit, const Body& body) {
    pool_.run((count + per_unit - 1) / per_unit, [&](size_t unit, int) {
      const size_t last = std::min(count, (unit + 1) * per_unit);
      for (size_t i = unit * per_unit; i < last; ++i) body(i);
    });
  }
  template <typename Body>
  void each_row(size_t rows, const Body& body) {
    in_units(rows, kRowsPerUnit, body);
  }
  template <typename Body>
  void each_vector(size_t vectors, const Body& body) {
    in_units(vectors, kVectorsPerUnit, body);
  }

  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<BlockMemory> memory_;
  SimdTarget target_;
  const Ops& ops_;
  ThreadPool pool_;
  AttendScratch scratch_;
  uint64_t saturated_ = 0;
  size_t vector_bytes_ = 0;  // of norms and biases, charged to the ledger
};

Result<const WeightFormat*> format_of(const GgufFile& file, const GgufTensor& tensor) {
  const WeightFormat* format = find_weight_format(tensor.type->id);
  if (format != nullptr) return format;
  std::string known;
  for (const WeightFormat& f : weight_formats()) known += (known.empty() ? "" : ", ") + std::string(f.name);
  return fail(ErrorCode::unsupported, file.name() + ": tensor " + tensor.name + " has type " + tensor.type->name +
                                          ", which is not built; convert the model to one of " + known);
}

Result<std::unique_ptr<Matrix>> CpuBackend::load_matrix(const GgufFile& file, const GgufTensor& tensor) {
  ASSIGN_OR_RETURN(const WeightFormat* format, format_of(file, tensor));
  const size_t inputs = tensor.shape[0], outputs = tensor.elements / inputs;
  const size_t row_bytes = inputs / format->block_elements * format->block_bytes;
  const size_t groups = (outputs + 15) / 16;
  ASSIGN_OR_RETURN(Slab slab, Slab::allocate(groups * 16 * inputs * sizeof(float), MemoryTag::weights, ledger_));
  auto matrix = std::make_unique<PackedF32>(outputs, inputs, std::move(slab));
  std::vector<std::vector<float>> rows(static_cast<size_t>(pool_.threads()), std::vector<float>(16 * inputs));
  pool_.run(groups, [&](size_t group, int worker) {
    float* plain = rows[static_cast<size_t>(worker)].data();
    const size_t count = std::min<size_t>(16, outputs - group * 16);
    for (size_t i = 0; i < count; ++i) {
      format->dequantize(tensor.bytes.data() + (group * 16 + i) * row_bytes, inputs / format->block_elements,
                         plain + i * inputs);
    }
    pack_rows(plain, count, inputs, group * 16, matrix->data());
  });
  file.release(tensor);
  return matrix;
}

Result<std::vector<float>> CpuBackend::load_vector(const GgufFile& file, const GgufTensor& tensor) {
  ASSIGN_OR_RETURN(const WeightFormat* format, format_of(file, tensor));
  if (ledger_ != nullptr) {
    RETURN_IF_ERROR(ledger_->charge(MemoryTag::weights, tensor.elements * sizeof(float)));
    vector_bytes_ += tensor.elements * sizeof(float);
  }
  std::vector<float> values(tensor.elements);
  format->dequantize(tensor.bytes.data(), tensor.elements / format->block_elements, values.data());
  return values;
}

}  // namespace

std::shared_ptr<Backend> cpu_backend(const CpuBackendOptions& options) { return std::make_shared<CpuBackend>(options); }

}  // namespace kvarto
