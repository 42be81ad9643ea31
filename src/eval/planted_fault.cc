#include "eval/planted_fault.h"

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/vmath.h"
#include "engine/rng.h"

namespace kvarto {
namespace {

struct Normals {
  double first, second;
};
// Two independent standard normal numbers (Box and Muller, 1958) of a counter.
Normals normals(const PhiloxCounter& counter, const PhiloxKey& key) {
  const PhiloxCounter bits = philox4x32_10(counter, key);
  const auto unit = [](uint32_t high, uint32_t low) {  // in [0, 1)
    return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * log_d(1.0 - unit(bits[0], bits[1])));
  const SinCos angle = sincos_d(2.0 * std::numbers::pi * unit(bits[2], bits[3]));
  return {radius * angle.cos, radius * angle.sin};
}

// A greater share hides these and more.
std::vector<uint8_t> hidden_tokens(const PlantedFault& fault, uint64_t max_tokens) {
  std::vector<uint8_t> hidden(max_tokens);
  for (uint64_t position = 1; position < max_tokens; ++position) {
    hidden[position] = uniform_draw(fault.seed, 0, position) < fault.hidden_share;
  }
  return hidden;
}

class FaultyBackend : public Backend {
 public:
  FaultyBackend(std::shared_ptr<Backend> backend, const PlantedFault& fault, uint64_t max_tokens)
      : backend_(std::move(backend)), key_{static_cast<uint32_t>(fault.seed), static_cast<uint32_t>(fault.seed >> 32)} {
    if (fault.key_noise_db) noise_ = pow_d(10.0, -*fault.key_noise_db / 20.0);
    if (fault.hidden_share > 0) hidden_ = hidden_tokens(fault, max_tokens);
  }

  void append(std::span<const AppendRows> sequences) override {
    if (noise_ == 0.0) return backend_->append(sequences);
    size_t floats = 0;
    for (const AppendRows& rows : sequences) floats += rows.count * key_floats(rows);
    if (keys_.size() < floats) keys_.resize(floats);
    disturbed_.assign(sequences.begin(), sequences.end());
    float* next = keys_.data();
    for (AppendRows& rows : disturbed_) next = disturb(rows, next);
    backend_->append(disturbed_);
  }

  void attend(std::span<const AttendRows> sequences, const AttentionShape& shape) override {
    if (hidden_.empty()) return backend_->attend(sequences, shape);
    for (const AttendRows& rows : sequences) {
      CHECK(rows.first_position + rows.count <= hidden_.size(), "a sequence is longer than the fault was made for");
    }
    AttentionShape faulty = shape;
    faulty.hidden = hidden_.data();
    backend_->attend(sequences, faulty);
  }

  // --- all else is done well
  std::shared_ptr<BlockMemory> memory() override { return backend_->memory(); }
  int threads() const override { return backend_->threads(); }
  SimdTarget target() const override { return backend_->target(); }
  Result<std::unique_ptr<Matrix>> load_matrix(const GgufFile& file, const GgufTensor& tensor) override {
    return backend_->load_matrix(file, tensor);
  }
  Result<std::vector<float>> load_vector(const GgufFile& file, const GgufTensor& tensor) override {
    return backend_->load_vector(file, tensor);
  }
  Status reserve(const StepShape& largest) override { return backend_->reserve(largest); }
  void matmul(const float* x, size_t rows, std::span<const Product> products) override {
    backend_->matmul(x, rows, products);
  }
  void embed(std::span<const TokenId> tokens, const Matrix& table, float scale, float* out) override {
    backend_->embed(tokens, table, scale, out);
  }
  void rms_norm(const float* x, size_t vectors, size_t n, const float* weight, float eps, float* y) override {
    backend_->rms_norm(x, vectors, n, weight, eps, y);
  }
  void rope_rows(const RopeTable& table, std::span<const uint64_t> positions, float* cos, float* sin) override {
    backend_->rope_rows(table, positions, cos, sin);
  }
  void rope(float* x, size_t rows, size_t heads, size_t head_dim, RopePairs style, const RopeRows& table) override {
    backend_->rope(x, rows, heads, head_dim, style, table);
  }
  void silu_mul(const float* gate, const float* up, size_t rows, size_t n, float* out) override {
    backend_->silu_mul(gate, up, rows, n, out);
  }
  void gelu_mul(const float* gate, const float* up, size_t rows, size_t n, float* out) override {
    backend_->gelu_mul(gate, up, rows, n, out);
  }
  void add(const float* a, size_t rows, size_t n, float* b) override { backend_->add(a, rows, n, b); }
  void soft_cap(float* x, size_t rows, size_t n, float cap) override { backend_->soft_cap(x, rows, n, cap); }
  uint64_t saturated_values() const override { return backend_->saturated_values(); }

 private:
  static const KvGroupLayer& layer_of(const AppendRows& rows) { return rows.view->group->layers[rows.layer]; }
  static size_t key_floats(const AppendRows& rows) {
    return size_t{layer_of(rows).kv_heads} * layer_of(rows).planes[0].dims;
  }

  // Makes `rows` write disturbed copies of its keys, which lie at `to`; returns the end of these.
  float* disturb(AppendRows& rows, float* to) const {
    const KvGroupLayer& layer = layer_of(rows);
    const uint32_t dims = layer.planes[0].dims;
    const float* const keys = std::exchange(rows.k, to);
    const size_t stride = std::exchange(rows.k_stride, key_floats(rows));
    for (uint32_t t = 0; t < rows.count; ++t) {
      const uint64_t position = rows.first_position + t;
      for (uint32_t head = 0; head < layer.kv_heads; ++head, to += dims) {
        add_noise({keys + t * stride + size_t{head} * dims, dims},
                  {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), layer.layer << 16 | head, 0},
                  to);
      }
    }
    return to;
  }

  // Noise in proportion to the vector's root mean square. The counter's last part tells dims apart; hidden_tokens()
  // has it 0.
  void add_noise(std::span<const float> key, PhiloxCounter place, float* to) const {
    double energy = 0.0;
    for (const float x : key) energy += double{x} * double{x};
    const double scale = noise_ * std::sqrt(energy / static_cast<double>(key.size()));
    for (size_t d = 0; d < key.size(); d += 2) {
      ++place[3];
      const Normals z = normals(place, key_);
      to[d] = static_cast<float>(double{key[d]} + scale * z.first);
      if (d + 1 < key.size()) to[d + 1] = static_cast<float>(double{key[d + 1]} + scale * z.second);
    }
  }

  std::shared_ptr<Backend> backend_;
  PhiloxKey key_;
  double noise_ = 0.0;           // its root mean square over that of a key; 0: none
  std::vector<uint8_t> hidden_;  // [max_tokens], or empty: none
  // Of one append(), kept for the next.
  std::vector<float> keys_;
  std::vector<AppendRows> disturbed_;
};

}  // namespace

std::shared_ptr<Backend> plant(std::shared_ptr<Backend> backend, const PlantedFault& fault, uint64_t max_tokens) {
  if (!fault.any()) return backend;
  return std::make_shared<FaultyBackend>(std::move(backend), fault, max_tokens);
}

}  // namespace kvarto
