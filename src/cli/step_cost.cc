#include "cli/step_cost.h"

#include <algorithm>

#include "cli/figures.h"
#include "ops/quant.h"
#include "ops/weight/weight.h"

namespace kvarto {
namespace {

// Sum over `count` tokens, the first behind `first` others, of the keys that each sees: itself, and all before it or
// those in the window.
double visible_keys(uint64_t first, uint64_t count, uint64_t window) {
  const auto triangle = [](uint64_t n) { return static_cast<double>(n) * static_cast<double>(n + 1) / 2; };
  const uint64_t last = first + count;
  if (window == 0 || last <= window) return triangle(last) - triangle(first);
  const uint64_t growing = std::max(first, window);  // from here on tokens see a full window
  return triangle(growing) - triangle(first) + static_cast<double>(last - growing) * static_cast<double>(window);
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  int8 += other.int8;
  int8_few += other.int8_few;
  f32 += other.f32;
  bytes += other.bytes;
  return *this;
}

Cost operator/(const Cost& cost, double parts) {
  return {cost.int8 / parts, cost.int8_few / parts, cost.f32 / parts, cost.bytes / parts};
}

Cost quantised_cost(double operations, uint64_t rows) {
  constexpr uint64_t kFewRows = kQuantTile;  // as ops/quant_matmul.cc chooses
  return rows <= kFewRows ? Cost{.int8_few = operations} : Cost{.int8 = operations};
}

Bound bound_of(const Cost& cost, const Rates& rates) {
  const auto time = [](double work, double rate) { return rate > 0 ? work / rate : 0.0; };
  return {.memory = time(cost.bytes, rates.bytes),
          .int8 = time(cost.int8, rates.int8) + time(cost.int8_few, rates.int8_few),
          .f32 = time(cost.f32, rates.f32)};
}

MatrixSizes matrix_sizes(std::span<const GgufTensor> tensors, bool reference) {
  constexpr std::string_view kHead = "output.weight", kEmbedding = "token_embd.weight";
  const bool separate_head = std::ranges::any_of(tensors, [&](const GgufTensor& t) { return t.name == kHead; });
  MatrixSizes sizes;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.shape.size() < 2 || (separate_head && tensor.name == kEmbedding)) continue;
    const bool head = tensor.name == kHead || tensor.name == kEmbedding;
    const WeightFormat* format = find_weight_format(tensor.type->id);
    const bool int8 = format != nullptr && format->quant != nullptr && !reference;
    double& size = head ? (int8 ? sizes.head_int8 : sizes.head_f32) : (int8 ? sizes.int8 : sizes.f32);
    size += static_cast<double>(tensor.elements);
  }
  return sizes;
}

StepCost::StepCost(ModelConfig config, const MatrixSizes& sizes, KvLayout layout, size_t pass_bytes,
                   uint32_t step_tokens)
    : config_(std::move(config)),
      sizes_(sizes),
      layout_(std::move(layout)),
      pass_bytes_(static_cast<double>(pass_bytes)),
      step_tokens_(step_tokens) {}

double StepCost::attention(uint64_t first, uint64_t count) const {
  double operations = 0;
  for (const LayerConfig& layer : config_.layers) {
    operations += 2.0 * layer.heads * (layer.head_dim + layer.value_dim) * visible_keys(first, count, layer.window);
  }
  return operations;
}

Cost StepCost::part(const Part& part) const {
  const auto rows = static_cast<double>(part.count), logits = part.logits ? 1.0 : 0.0;
  Cost cost{.f32 = 2 * (rows * sizes_.f32 + logits * sizes_.head_f32) + attention(part.first, part.count),
            .bytes = kv_read_bytes(layout_, part.first + part.count)};
  cost += quantised_cost(2 * rows * sizes_.int8, part.rows);
  cost += quantised_cost(2 * logits * sizes_.head_int8, part.logit_rows);
  return cost;
}

Cost StepCost::prompts(uint64_t depth, uint32_t batch, uint32_t count) const {
  const uint64_t all = uint64_t{batch} * count, steps = (all + step_tokens_ - 1) / step_tokens_;
  Cost cost{.bytes = static_cast<double>(steps) * pass_bytes_};
  for (uint64_t done = 0; done < count; done += step_tokens_) {
    const uint64_t chunk = std::min<uint64_t>(step_tokens_, count - done);
    const Cost one = part({.first = depth + done,
                           .count = chunk,
                           .logits = done + chunk == count,
                           .rows = std::min<uint64_t>(step_tokens_, chunk * batch),
                           .logit_rows = batch});
    for (uint32_t i = 0; i < batch; ++i) cost += one;
  }
  return cost;
}

Cost StepCost::generation(uint64_t length, uint32_t batch, uint32_t count) const {
  Cost cost{.bytes = count * pass_bytes_};
  for (uint64_t i = 0; i < count; ++i) {
    const Cost one = part({.first = length + i, .count = 1, .logits = true, .rows = batch, .logit_rows = batch});
    for (uint32_t sequence = 0; sequence < batch; ++sequence) cost += one;
  }
  return cost;
}

Cost StepCost::recompute(uint64_t length, uint32_t batch, uint32_t count) const {
  Cost cost;
  for (uint32_t i = 0; i < count; ++i) cost += prompts(0, batch, static_cast<uint32_t>(length) + i);
  return cost;
}

}  // namespace kvarto
