#include "backend/cpu_matrix.h"

#include <algorithm>

#include "ops/weight/weight.h"

namespace kvarto {
namespace {

// Rows of weights as floats, in the layout of ops/ops.h.
class FloatMatrix : public CpuMatrix {
 public:
  FloatMatrix(size_t outputs, size_t inputs, Slab slab) : CpuMatrix(outputs, inputs), slab_(std::move(slab)) {}

  static size_t group_bytes(size_t inputs) { return 16 * inputs * sizeof(float); }
  size_t group_bytes() const override { return group_bytes(inputs()); }
  void gather_row(size_t index, float scale, float* out) const override {
    ops_for(SimdTarget::scalar).gather_row(view(), index, scale, out);
  }
  void multiply(SimdTarget target, const float* x, const QuantRows& rows, const float* bias, size_t first, size_t last,
                float* y, std::byte*) const override {
    ops_for(target).matmul(x, inputs(), rows.rows, view(), bias, first, last, y, outputs());
  }
  float* data() const { return reinterpret_cast<float*>(slab_.data()); }

 private:
  PackedMatrix view() const { return {outputs(), inputs(), data()}; }
  Slab slab_;
};

class QuantisedMatrix : public CpuMatrix {
 public:
  QuantisedMatrix(const QuantMatrix& shape, Slab slab)
      : CpuMatrix(shape.outputs, shape.inputs), slab_(std::move(slab)), matrix_(shape) {
    matrix_.data = slab_.data();
  }

  size_t group_bytes() const override { return matrix_.group_bytes(); }
  void gather_row(size_t index, float scale, float* out) const override {
    gather_quant_row(matrix_, index, scale, out);
  }
  const QuantMatrix* quantised() const override { return &matrix_; }
  void multiply(SimdTarget target, const float*, const QuantRows& rows, const float* bias, size_t first, size_t last,
                float* y, std::byte* scratch) const override {
    quant_ops(target).matmul(rows, matrix_, bias, first, last, y, outputs(), scratch);
  }
  std::byte* data() const { return slab_.data(); }

 private:
  Slab slab_;
  QuantMatrix matrix_;
};

Result<const WeightFormat*> format_of(const GgufFile& file, const GgufTensor& tensor) {
  const WeightFormat* format = find_weight_format(tensor.type->id);
  if (format != nullptr) return format;
  std::string known;
  for (const WeightFormat& f : weight_formats()) known += (known.empty() ? "" : ", ") + std::string(f.name);
  return fail(ErrorCode::unsupported, file.name() + ": tensor " + tensor.name + " has type " + tensor.type->name +
                                          ", which is not built; convert the model to one of " + known);
}

// A 2-d tensor of a file: rows of blocks.
struct FileMatrix {
  const WeightFormat& format;
  const std::byte* bytes;
  size_t inputs, outputs;
  FileMatrix(const WeightFormat& f, const GgufTensor& tensor)
      : format(f), bytes(tensor.bytes.data()), inputs(tensor.shape[0]), outputs(tensor.elements / tensor.shape[0]) {}
  size_t groups() const { return (outputs + 15) / 16; }
  size_t row_blocks() const { return inputs / format.block_elements; }
  size_t row_bytes() const { return row_blocks() * format.block_bytes; }
  const std::byte* rows(size_t group) const { return bytes + group * 16 * row_bytes(); }
  size_t rows_in(size_t group) const { return std::min<size_t>(16, outputs - group * 16); }
};

constexpr size_t kSliceInputs = 256;  // whole blocks of every format

Result<std::unique_ptr<CpuMatrix>> load_floats(const FileMatrix& in, const std::shared_ptr<Ledger>& ledger,
                                               ThreadPool& pool) {
  ASSIGN_OR_RETURN(Slab slab,
                   Slab::allocate(in.groups() * FloatMatrix::group_bytes(in.inputs), MemoryTag::weights, ledger));
  auto matrix = std::make_unique<FloatMatrix>(in.outputs, in.inputs, std::move(slab));
  pool.run(in.groups(), [&](size_t group, int) {
    // A slice of 16 rows at a time: small enough for the stack, so that loading takes no memory beside the matrix.
    float plain[16 * kSliceInputs];
    float* out = matrix->data() + group * 16 * in.inputs;
    for (size_t first = 0; first < in.inputs; first += kSliceInputs) {
      const size_t n = std::min(kSliceInputs, in.inputs - first), block = first / in.format.block_elements;
      for (size_t i = 0; i < in.rows_in(group); ++i) {
        in.format.dequantize(in.rows(group) + i * in.row_bytes() + block * in.format.block_bytes,
                             n / in.format.block_elements, plain + i * n);
      }
      pack_rows(plain, in.rows_in(group), n, 0, out + first * 16);
    }
  });
  return matrix;
}

Result<std::unique_ptr<CpuMatrix>> load_quantised(const FileMatrix& in, const std::shared_ptr<Ledger>& ledger,
                                                  ThreadPool& pool) {
  const QuantMatrix shape{.outputs = in.outputs, .inputs = in.inputs, .format = in.format.quant, .data = nullptr};
  ASSIGN_OR_RETURN(Slab slab, Slab::allocate(shape.bytes(), MemoryTag::weights, ledger));
  auto matrix = std::make_unique<QuantisedMatrix>(shape, std::move(slab));
  pool.run(in.groups(), [&](size_t group, int) {
    pack_quant_group(shape, in.rows(group), in.row_bytes(), in.format.block_bytes, in.format.block_elements,
                     in.rows_in(group), matrix->data() + group * shape.group_bytes());
  });
  return matrix;
}

}  // namespace

Result<std::unique_ptr<CpuMatrix>> load_cpu_matrix(const GgufFile& file, const GgufTensor& tensor, bool reference,
                                                   const std::shared_ptr<Ledger>& ledger, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const WeightFormat* format, format_of(file, tensor));
  const FileMatrix in(*format, tensor);
  const bool quantised = format->quant != nullptr && !reference;
  ASSIGN_OR_RETURN(std::unique_ptr<CpuMatrix> matrix,
                   quantised ? load_quantised(in, ledger, pool) : load_floats(in, ledger, pool));
  file.release(tensor);
  return matrix;
}

Result<std::vector<float>> read_vector(const GgufFile& file, const GgufTensor& tensor) {
  ASSIGN_OR_RETURN(const WeightFormat* format, format_of(file, tensor));
  std::vector<float> values(tensor.elements);
  format->dequantize(tensor.bytes.data(), tensor.elements / format->block_elements, values.data());
  return values;
}

Result<size_t> cpu_weight_bytes(const GgufFile& file, const GgufTensor& tensor, bool reference) {
  ASSIGN_OR_RETURN(const WeightFormat* format, format_of(file, tensor));
  if (tensor.shape.size() == 1) return tensor.elements * sizeof(float);
  const FileMatrix in(*format, tensor);
  if (format->quant == nullptr || reference) return in.groups() * FloatMatrix::group_bytes(in.inputs);
  return QuantMatrix{.outputs = in.outputs, .inputs = in.inputs, .format = format->quant, .data = nullptr}.bytes();
}

}  // namespace kvarto
