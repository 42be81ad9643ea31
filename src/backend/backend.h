// Backend: memory plus the table of operations a model's forward pass is written in. The seam to devices: a CUDA
// backend implements the same class. The CPU one cuts work into units fixed by shape and runs the row kernels of ops/
// and the attention of kv/ on a thread pool. One caller at a time (the owner); results do not depend on threads or SIMD
// target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "base/memory.h"
#include "format/gguf.h"
#include "kv/attend.h"
#include "kvarto/result.h"
#include "ops/ops.h"
#include "ops/rope_table.h"

namespace kvarto {

// A weight matrix in the backend's own layout; made by Backend::load_matrix.
class Matrix {
 public:
  virtual ~Matrix() = default;
  size_t outputs() const { return outputs_; }
  size_t inputs() const { return inputs_; }
  virtual size_t bytes() const = 0;  // read per pass over the matrix

 protected:
  Matrix(size_t outputs, size_t inputs) : outputs_(outputs), inputs_(inputs) {}

 private:
  size_t outputs_, inputs_;
};

// y [rows][outputs] = x [rows][inputs] times the matrix, plus bias [outputs] or null.
struct Product {
  const Matrix* w = nullptr;
  const float* bias = nullptr;
  float* y = nullptr;
};

// The largest arguments that operations get.
struct StepShape {
  size_t rows = 0;                     // of a matmul
  size_t inputs = 0;                   // of a matrix
  std::vector<AttendSizes> attention;  // of the layers
};

// cos and sin of a step's rows: [rows][pairs] each.
struct RopeRows {
  const float* cos = nullptr;
  const float* sin = nullptr;
  uint32_t pairs = 0;
};

// Rows are [rows][width] with width as stride unless a stride is given.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::shared_ptr<BlockMemory> memory() = 0;
  virtual int threads() const = 0;
  virtual SimdTarget target() const = 0;

  // Repacks a 2-d tensor [inputs, outputs]; the file's pages are released afterwards.
  virtual Result<std::unique_ptr<Matrix>> load_matrix(const GgufFile& file, const GgufTensor& tensor) = 0;
  virtual Result<std::vector<float>> load_vector(const GgufFile& file, const GgufTensor& tensor) = 0;

  // Memory that operations need beside their arguments, for steps up to this size: they allocate nothing after it.
  // Without it they allocate as they go.
  virtual Status reserve(const StepShape& largest) = 0;

  // All products of the same x [rows][inputs], which is prepared once.
  virtual void matmul(const float* x, size_t rows, std::span<const Product> products) = 0;
  // out[r] = scale * row tokens[r] of the table.
  virtual void embed(std::span<const TokenId> tokens, const Matrix& table, float scale, float* out) = 0;
  // Each of rows x heads vectors of n values at stride `n`: y = rms_norm(x) * weight. heads = 1 for plain rows.
  virtual void rms_norm(const float* x, size_t vectors, size_t n, const float* weight, float eps, float* y) = 0;
  virtual void rope_rows(const RopeTable& table, std::span<const uint64_t> positions, float* cos, float* sin) = 0;
  virtual void rope(float* x, size_t rows, size_t heads, size_t head_dim, RopePairs style, const RopeRows& table) = 0;
  virtual void silu_mul(const float* gate, const float* up, size_t rows, size_t n, float* out) = 0;
  virtual void gelu_mul(const float* gate, const float* up, size_t rows, size_t n, float* out) = 0;
  virtual void add(const float* a, size_t rows, size_t n, float* b) = 0;  // b += a
  virtual void soft_cap(float* x, size_t rows, size_t n, float cap) = 0;
  virtual void append(std::span<const AppendRows> sequences) = 0;
  // KV values that were beyond the range of a half float and saturated, since the backend was made.
  virtual uint64_t saturated_values() const = 0;
  virtual void attend(std::span<const AttendRows> sequences, const AttentionShape& shape) = 0;
};

struct CpuBackendOptions {
  int threads = 0;                 // 0: one per usable physical core
  std::shared_ptr<Ledger> ledger;  // may be null
  SimdTarget target = best_target();
  bool reference = false;  // see EngineOptions
};
std::shared_ptr<Backend> cpu_backend(const CpuBackendOptions& options);

int cpu_threads(int asked);  // what `threads` comes to

// For the planner: what load_matrix and load_vector keep of a tensor, and what reserve() allocates.
Result<size_t> cpu_weight_bytes(const GgufFile& file, const GgufTensor& tensor, bool reference);
size_t cpu_scratch_bytes(const StepShape& largest, int threads, bool reference);

}  // namespace kvarto
