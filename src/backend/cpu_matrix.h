// Weight matrices as the CPU kernels read them: quantised ones in the layout of ops/quant.h, the others (all, in the
// reference path) as floats. Immutable after load; any thread.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "ops/quant.h"

namespace kvarto {

class CpuMatrix : public Matrix {
 public:
  virtual size_t group_bytes() const = 0;  // of 16 outputs
  size_t groups() const { return (outputs() + 15) / 16; }
  size_t bytes() const override { return groups() * group_bytes(); }
  virtual void gather_row(size_t index, float scale, float* out) const = 0;  // out [inputs]

  // Not null when it multiplies quantised rows instead of floats.
  virtual const QuantMatrix* quantised() const { return nullptr; }
  // Outputs of groups [first, last). `rows` is what x came to for quantised matrices; `scratch` is the worker's.
  virtual void multiply(SimdTarget target, const float* x, const QuantRows& rows, const float* bias, size_t first,
                        size_t last, float* y, std::byte* scratch) const = 0;

 protected:
  using Matrix::Matrix;
};

Result<std::unique_ptr<CpuMatrix>> load_cpu_matrix(const GgufFile& file, const GgufTensor& tensor, bool reference,
                                                   const std::shared_ptr<Ledger>& ledger, ThreadPool& pool);
Result<std::vector<float>> read_vector(const GgufFile& file, const GgufTensor& tensor);

}  // namespace kvarto
