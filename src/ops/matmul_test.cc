#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/float_testing.h"
#include "ops/ops.h"

namespace kvarto {
namespace {

struct Problem {
  size_t rows, outputs, inputs, x_stride, y_stride;
  std::vector<float> w, bias;  // w [outputs][inputs]
  std::vector<float> packed;
  PackedMatrix matrix;

  Problem(size_t rows_, size_t outputs_, size_t inputs_, size_t pad, FloatSource& source, bool awkward)
      : rows(rows_), outputs(outputs_), inputs(inputs_), x_stride(inputs_ + pad), y_stride(outputs_ + pad) {
    const auto value = [&] { return awkward ? source.awkward() : source.uniform(-1, 1); };
    w.resize(outputs * inputs);
    for (float& v : w) v = value();
    bias.resize(outputs);
    for (float& v : bias) v = value();
    matrix.outputs = outputs;
    matrix.inputs = inputs;
    packed.resize(matrix.groups() * inputs * 16);
    pack_rows(w.data(), outputs, inputs, 0, packed.data());
    matrix.data = packed.data();
  }
};

// The plain triple loop.
std::vector<float> plain(const Problem& p, const float* x, bool with_bias) {
  std::vector<float> y(p.rows * p.outputs);
  for (size_t r = 0; r < p.rows; ++r) {
    for (size_t o = 0; o < p.outputs; ++o) {
      float sum = with_bias ? p.bias[o] : 0.0f;
      for (size_t k = 0; k < p.inputs; ++k) sum = std::fma(x[r * p.x_stride + k], p.w[o * p.inputs + k], sum);
      y[r * p.outputs + o] = sum;
    }
  }
  return y;
}

constexpr float kUntouched = -12345.0f;

// x and y end at the end of readable memory; what lies between y's rows must stay as it was.
void check(const Problem& p, FloatSource& source, bool with_bias, bool awkward) {
  FencedFloats x((p.rows - 1) * p.x_stride + p.inputs);
  for (float& v : x.all()) v = awkward ? source.awkward() : source.uniform(-1, 1);
  const std::vector<float> expected = plain(p, x.data(), with_bias);
  const size_t groups = p.matrix.groups();
  const size_t cut = source.size(0, groups);  // units of work may be any set of groups
  for (SimdTarget target : available_targets()) {
    FencedFloats y((p.rows - 1) * p.y_stride + p.outputs, kUntouched);
    for (auto [first, last] : {std::pair(cut, groups), std::pair(size_t{0}, cut)}) {
      if (first == last) continue;
      ops_for(target).matmul(x.data(), p.x_stride, p.rows, p.matrix, with_bias ? p.bias.data() : nullptr, first, last,
                             y.data(), p.y_stride);
    }
    for (size_t i = 0; i < y.all().size(); ++i) {
      const size_t r = i / p.y_stride, o = i % p.y_stride;
      const float want = o < p.outputs ? expected[r * p.outputs + o] : kUntouched;
      ASSERT_TRUE(same_bits(y[i], want)) << simd_target_name(target) << " rows " << p.rows << " outputs " << p.outputs
                                         << " inputs " << p.inputs << " at " << r << "," << o << ": " << y[i] << " "
                                         << want;
    }
  }
}

TEST(Matmul, EveryTargetEqualsThePlainLoopBitForBit) {
  FloatSource source(11);
  for (size_t outputs = 1; outputs <= 40; ++outputs) {
    for (size_t rows = 1; rows <= 9; ++rows) {
      const size_t inputs = source.size(1, 70);
      check(Problem(rows, outputs, inputs, rows % 3, source, false), source, outputs % 2 == 0, false);
    }
  }
  for (size_t inputs = 1; inputs <= 70; ++inputs) {
    check(Problem(source.size(1, 9), source.size(1, 40), inputs, 1, source, false), source, true, false);
  }
}

TEST(Matmul, BlocksOfTheReducedDimensionAndWideTilesChangeNothing) {
  FloatSource source(12);
  for (size_t inputs : {127, 128, 129, 256, 300}) {
    for (size_t rows : {1, 2, 3, 6, 7, 13}) {
      check(Problem(rows, 16 * source.size(8, 20) + source.size(0, 15), inputs, 5, source, false), source, true, false);
    }
  }
}

TEST(Matmul, InfinitiesNaNsAndSubnormalsPassThrough) {
  FloatSource source(13);
  for (int round = 0; round < 200; ++round) {
    check(Problem(source.size(1, 9), source.size(1, 40), source.size(1, 12), 0, source, true), source, round % 2 == 0,
          true);
  }
}

TEST(Matmul, ARowDoesNotDependOnItsNeighbours) {
  FloatSource source(14);
  const Problem p(23, 70, 150, 0, source, false);
  std::vector<float> x(p.rows * p.inputs), all(p.rows * p.outputs), one(p.outputs);
  for (float& v : x) v = source.uniform(-1, 1);
  const Ops& ops = ops_for(best_target());
  ops.matmul(x.data(), p.inputs, p.rows, p.matrix, nullptr, 0, p.matrix.groups(), all.data(), p.outputs);
  for (size_t r = 0; r < p.rows; ++r) {
    ops.matmul(x.data() + r * p.inputs, p.inputs, 1, p.matrix, nullptr, 0, p.matrix.groups(), one.data(), p.outputs);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + r * p.outputs)) << r;
  }
}

TEST(PackRows, GroupsOfSixteenWithZerosBehind) {
  const size_t outputs = 21, inputs = 3;
  std::vector<float> rows(outputs * inputs), out(3 * inputs * 16, kUntouched);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i + 1);
  pack_rows(rows.data(), outputs, inputs, 16, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t group = i / (inputs * 16), k = i / 16 % inputs, lane = i % 16;
    const size_t output =
        group * 16 + lane;  // counted from output 0 of the matrix; the first 16 belong to another call
    const float want = output < 16 ? kUntouched : output < 16 + outputs ? rows[(output - 16) * inputs + k] : 0.0f;
    ASSERT_EQ(out[i], want) << i;
  }
}

TEST(GatherRow, GivesBackTheRowTimesTheScale) {
  FloatSource source(15);
  const Problem p(1, 37, 29, 0, source, false);
  for (SimdTarget target : available_targets()) {
    for (size_t index = 0; index < p.outputs; ++index) {
      FencedFloats out(p.inputs);
      ops_for(target).gather_row(p.matrix, index, 3.0f, out.data());
      for (size_t k = 0; k < p.inputs; ++k) ASSERT_EQ(out[k], p.w[index * p.inputs + k] * 3.0f);
    }
  }
}

}  // namespace
}  // namespace kvarto
