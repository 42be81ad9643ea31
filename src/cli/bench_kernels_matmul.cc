// Rows of `kvarto bench kernels` for weight matrices: every format of the list times one to many rows. Weights come
// from memory, as in a step, where every matrix is read once.
#include <cstring>
#include <memory>
#include <random>

#include "base/memory.h"
#include "cli/bench_kernels.h"
#include "ops/ops.h"
#include "ops/quant.h"
#include "ops/weight/weight.h"

namespace kvarto {
namespace {

struct Shape {
  size_t outputs, inputs;
};
constexpr Shape kShapes[] = {{576, 1536}, {896, 4864}};  // down projections of SmolLM2-135M and Qwen2.5-0.5B
constexpr size_t kRows[] = {1, 8, 64, 512};

// Copies of one matrix that are out of the caches when their turn comes. Shared by the rows, filled for one matrix at a
// time.
class WeightRing {
 public:
  // `fill` writes the first copy of `bytes` bytes; `name` is the matrix's.
  Status hold(const std::string& name, size_t bytes, const std::function<void(std::byte*)>& fill) {
    if (name == name_) return {};
    if (slab_.size() == 0) {
      ASSIGN_OR_RETURN(slab_, Slab::allocate(std::max(cold_bytes(), bytes), MemoryTag::staging, nullptr));
    }
    if (bytes > slab_.size()) return fail(ErrorCode::out_of_memory, "no memory for a matrix; close other programs");
    name_ = name;
    bytes_ = bytes;
    copies_ = slab_.size() / bytes;
    fill(slab_.data());
    for (size_t i = 1; i < copies_; ++i) std::memcpy(slab_.data() + i * bytes, slab_.data(), bytes);
    return {};
  }
  const std::byte* next() {
    turn_ = (turn_ + 1) % copies_;
    return slab_.data() + turn_ * bytes_;
  }

 private:
  Slab slab_;
  std::string name_;
  size_t bytes_ = 0, copies_ = 1, turn_ = 0;
};

// Any codes, and scales that keep sums small.
void fill_quantised(const QuantMatrix& w, std::byte* out) {
  std::mt19937_64 random(7);
  const auto scale_kind = w.format->shape.scale;
  for (size_t g = 0; g < w.groups(); ++g) {
    std::byte* group = out + g * w.group_bytes();
    for (size_t i = 0; i < w.supers_offset(); ++i) group[i] = static_cast<std::byte>(random());
    const auto put_all = [&](size_t first, size_t last, auto value) {
      for (size_t at = first; at < last; at += sizeof value) std::memcpy(group + at, &value, sizeof value);
    };
    constexpr uint16_t kSmallHalf = 0x1400;  // 2^-10
    if (scale_kind == QuantScale::single) put_all(w.scales_offset(), w.supers_offset(), 0x1p-10f);
    if (!has_super(scale_kind) && scale_kind != QuantScale::single) {
      put_all(w.scales_offset(), w.supers_offset(), kSmallHalf);
    }
    put_all(w.supers_offset(), w.group_bytes(), kSmallHalf);
  }
}

std::string row_name(const std::string& format, const Shape& shape, size_t rows) {
  return "matmul/" + format + "/" + std::to_string(shape.outputs) + "x" + std::to_string(shape.inputs) +
         "/rows:" + std::to_string(rows);
}

double operations(const Shape& shape, size_t rows) {
  return 2.0 * static_cast<double>(rows * shape.outputs * shape.inputs);
}

KernelRow quantised_row(SimdTarget target, const WeightFormat& format, const Shape& shape, size_t rows,
                        const std::shared_ptr<WeightRing>& ring) {
  const QuantMatrix matrix{.outputs = shape.outputs, .inputs = shape.inputs, .format = format.quant, .data = nullptr};
  const std::string name(format.name);
  const auto scene = [=]() -> Result<std::function<void()>> {
    RETURN_IF_ERROR(
        ring->hold(row_name(name, shape, 0), matrix.bytes(), [&](std::byte* out) { fill_quantised(matrix, out); }));
    const size_t row_bytes = quant_rows_bytes(rows, shape.inputs);
    ASSIGN_OR_RETURN(Slab slab, Slab::allocate(whole_lines(row_bytes) + quant_scratch_bytes(shape.inputs),
                                               MemoryTag::activations, nullptr));
    const auto memory = std::make_shared<Slab>(std::move(slab));
    const QuantRows x = quant_rows_at(memory->data(), rows, shape.inputs);
    quant_ops(target).quantise(normal_floats(rows * shape.inputs, 1).data(), 0, rows, x);
    const auto y = std::make_shared<std::vector<float>>(rows * shape.outputs);
    return [=] {
      QuantMatrix w = matrix;
      w.data = ring->next();
      quant_ops(target).matmul(x, w, nullptr, 0, w.groups(), y->data(), w.outputs,
                               memory->data() + whole_lines(row_bytes));
    };
  };
  Cost cost = quantised_cost(operations(shape, rows), rows);
  cost.bytes = static_cast<double>(matrix.bytes());
  return {.name = row_name(name, shape, rows), .cost = cost, .scene = scene};
}

KernelRow float_row(SimdTarget target, const Shape& shape, size_t rows, const std::shared_ptr<WeightRing>& ring) {
  const PackedMatrix matrix{.outputs = shape.outputs, .inputs = shape.inputs};
  const size_t values = matrix.groups() * 16 * shape.inputs;
  const auto scene = [=]() -> Result<std::function<void()>> {
    RETURN_IF_ERROR(ring->hold(row_name("float", shape, 0), values * sizeof(float), [&](std::byte* out) {
      std::memcpy(out, normal_floats(values, 2).data(), values * sizeof(float));
    }));
    const auto x = std::make_shared<std::vector<float>>(normal_floats(rows * shape.inputs, 1));
    const auto y = std::make_shared<std::vector<float>>(rows * shape.outputs);
    return [=] {
      PackedMatrix w = matrix;
      w.data = reinterpret_cast<const float*>(ring->next());
      ops_for(target).matmul(x->data(), w.inputs, rows, w, nullptr, 0, w.groups(), y->data(), w.outputs);
    };
  };
  return {.name = row_name("float", shape, rows),
          .cost = {.f32 = operations(shape, rows), .bytes = static_cast<double>(values * sizeof(float))},
          .scene = scene};
}

}  // namespace

std::vector<KernelRow> matmul_rows(SimdTarget target) {
  const auto ring = std::make_shared<WeightRing>();
  std::vector<KernelRow> list;
  for (const Shape& shape : kShapes) {
    for (const size_t rows : kRows) list.push_back(float_row(target, shape, rows, ring));
  }
  for (const WeightFormat& format : weight_formats()) {
    if (format.quant == nullptr) continue;  // kept as floats
    for (const Shape& shape : kShapes) {
      for (const size_t rows : kRows) list.push_back(quantised_row(target, format, shape, rows, ring));
    }
  }
  return list;
}

}  // namespace kvarto
