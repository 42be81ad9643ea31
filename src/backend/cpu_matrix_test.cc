// What loading leaves behind: the bytes that the planner was told, none of the file's pages, and matrices that give the
// same products alone and together.
#include "backend/cpu_matrix.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "ops/weight/weight.h"
#include "tests/gguf_builder.h"

namespace kvarto {
namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kQ8_0 = 8, kQ4_K = 12;  // numbers of GGUF's types
constexpr size_t kOutputs = 1000, kInputs = 1024;

std::shared_ptr<Ledger> unlimited() { return std::make_shared<Ledger>(std::numeric_limits<size_t>::max()); }

std::vector<float> random_floats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// Rows of weights of one format. Bytes below 0x3c: no half float among them is infinite or NaN.
std::string random_weights(uint32_t type, uint64_t seed) {
  const WeightFormat& format = *find_weight_format(type);
  std::mt19937_64 random(seed);
  std::string bytes(kOutputs * kInputs / format.block_elements * format.block_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() % 0x3c);
  return bytes;
}

std::string file_of_three_formats() {
  GgufBuilder builder;
  builder.tensor("f16", {kInputs, kOutputs}, kF16, random_weights(kF16, 1));
  builder.tensor("norm", {kInputs}, kF32, std::string(kInputs * sizeof(float), '\0'));
  builder.tensor("q8_0", {kInputs, kOutputs}, kQ8_0, random_weights(kQ8_0, 2));
  builder.tensor("q4_k", {kInputs, kOutputs}, kQ4_K, random_weights(kQ4_K, 3));
  return builder.build();
}

// Pages wholly inside `bytes` that this process holds: bit 63 of their words in /proc/self/pagemap. (mincore would tell
// what the page cache holds.) Nothing where the system does not say.
std::optional<size_t> pages_held(std::span<const std::byte> bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(bytes.data());
  const size_t first = (start + page - 1) / page, last = (start + bytes.size()) / page;
  if (last <= first) return 0;
  std::vector<uint64_t> words(last - first);
  const int fd = open("/proc/self/pagemap", O_RDONLY);
  const auto size = static_cast<ssize_t>(words.size() * sizeof(uint64_t));
  const bool read = fd >= 0 && pread(fd, words.data(), static_cast<size_t>(size),
                                     static_cast<off_t>(first * sizeof(uint64_t))) == size;
  if (fd >= 0) close(fd);
  if (!read) return std::nullopt;
  return std::ranges::count_if(words, [](uint64_t word) { return word >> 63 == 1; });
}

void read_through(std::span<const std::byte> bytes) {
  [[maybe_unused]] volatile std::byte seen{};
  for (size_t i = 0; i < bytes.size(); i += 512) seen = bytes[i];
}

// Loads every tensor as a model does.
void check_loading(const std::string& path, bool reference) {
  const auto file = GgufFile::open(path).value();
  const auto ledger = unlimited();
  const auto backend = cpu_backend({.threads = 2, .ledger = ledger, .reference = reference});
  std::vector<std::unique_ptr<Matrix>> matrices;
  size_t planned = 0, pages = 0, left = 0;
  for (const GgufTensor& tensor : file->tensors()) {
    planned += cpu_weight_bytes(*file, tensor, reference).value();
    if (tensor.shape.size() == 1) {
      ASSERT_EQ(backend->load_vector(*file, tensor).value().size(), tensor.elements);
      continue;
    }
    read_through(tensor.bytes);
    const std::optional<size_t> held = pages_held(tensor.bytes);
    if (!held) GTEST_SKIP() << "/proc/self/pagemap cannot be read";
    EXPECT_GE((*held + 1) * 4096, tensor.bytes.size() - 4096) << "the test sees no pages of " << tensor.name;
    matrices.push_back(backend->load_matrix(*file, tensor).value());
    EXPECT_EQ(pages_held(tensor.bytes), 0u) << tensor.name;
    EXPECT_EQ(ledger->used(MemoryTag::weights), planned) << tensor.name;
    pages += *held;
  }
  EXPECT_EQ(ledger->total(), planned) << "something beside weights";
  // Reading the next tensor maps a few pages before it again, sixteen at a time.
  for (const GgufTensor& tensor : file->tensors()) left += *pages_held(tensor.bytes);
  EXPECT_LE(left, 16 * file->tensors().size());
  EXPECT_LT(left, pages / 4);
}

class Loading : public ::testing::TestWithParam<bool> {};  // the reference path?
TEST_P(Loading, ReleasesTheFilesPagesAndTakesWhatWasPlanned) {
  const auto path =
      std::filesystem::temp_directory_path() / ("kvarto_cpu_matrix_" + std::to_string(getpid()) + ".gguf");
  std::ofstream(path, std::ios::binary) << file_of_three_formats();
  check_loading(path, GetParam());
  std::filesystem::remove(path);
}
INSTANTIATE_TEST_SUITE_P(Paths, Loading, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "reference" : "int8"; });

class GoldenLoading : public ::testing::TestWithParam<bool> {};
TEST_P(GoldenLoading, ReleasesTheFilesPagesAndTakesWhatWasPlanned) {
  const auto path = std::filesystem::path(KVARTO_SOURCE_DIR) / "models" / "smollm2-135m-q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here (tools/fetch_models brings it)";
  check_loading(path, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Sample, GoldenLoading, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "reference" : "int8"; });

// --- products

struct Three {
  explicit Three(bool reference)
      : text(file_of_three_formats()),
        file(GgufFile::parse(std::as_bytes(std::span(text))).value()),
        backend(cpu_backend({.threads = 2, .ledger = nullptr, .reference = reference})) {
    for (const char* name : {"f16", "q8_0", "q4_k"}) {
      matrices.push_back(backend->load_matrix(*file, *file->find_tensor(name)).value());
    }
  }
  const std::string text;
  const std::shared_ptr<const GgufFile> file;
  const std::shared_ptr<Backend> backend;
  std::vector<std::unique_ptr<Matrix>> matrices;
};

// Matrices of floats beside quantised ones, in one call and each on its own.
TEST(CpuMatmul, MixedProductsEqualSingleOnes) {
  for (const bool reference : {false, true}) {
    const Three three(reference);
    const std::vector<float> bias = random_floats(kOutputs, 4);
    for (const size_t rows : {size_t{1}, size_t{5}, size_t{40}}) {
      const std::vector<float> x = random_floats(rows * kInputs, rows);
      std::vector<std::vector<float>> together(3, std::vector<float>(rows * kOutputs)), alone = together;
      std::vector<Product> products;
      for (size_t i = 0; i < 3; ++i) {
        products.push_back({three.matrices[i].get(), i == 1 ? bias.data() : nullptr, together[i].data()});
      }
      three.backend->matmul(x.data(), rows, products);
      for (size_t i = 0; i < 3; ++i) {
        Product single = products[i];
        single.y = alone[i].data();
        three.backend->matmul(x.data(), rows, {&single, 1});
        EXPECT_EQ(together[i], alone[i]) << "matrix " << i << ", rows " << rows << ", reference " << reference;
      }
    }
  }
}

// Against sums in double. Rounding activations to int8 costs up to 1 / 254 of the largest of 32 in each of them.
TEST(CpuMatmul, ProductsAreThoseOfTheFile) {
  constexpr size_t kRows = 20;
  const std::vector<float> x = random_floats(kRows * kInputs, 5);
  for (const bool reference : {false, true}) {
    const Three three(reference);
    const char* const names[] = {"f16", "q8_0", "q4_k"};
    for (size_t m = 0; m < 3; ++m) {
      const GgufTensor& tensor = *three.file->find_tensor(names[m]);
      const WeightFormat& format = *find_weight_format(tensor.type->id);
      std::vector<float> w(kOutputs * kInputs), y(kRows * kOutputs);
      format.dequantize(tensor.bytes.data(), w.size() / format.block_elements, w.data());
      const Product product{three.matrices[m].get(), nullptr, y.data()};
      three.backend->matmul(x.data(), kRows, {&product, 1});
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t o = 0; o < kOutputs; o += 37) {
          double sum = 0, magnitude = 0;
          for (size_t i = 0; i < kInputs; ++i) {
            const double term = double{w[o * kInputs + i]} * x[r * kInputs + i];
            sum += term;
            magnitude += std::abs(term);
          }
          const double share = format.quant == nullptr || reference ? 1e-5 : 1e-2;
          ASSERT_NEAR(y[r * kOutputs + o], sum, share * magnitude) << names[m] << ", row " << r << ", output " << o;
        }
      }
    }
  }
}

// 800 inputs are cut into fewer rows at a time than 768: memory for the first has to serve the second too.
TEST(CpuMatmul, TakesNothingBesideWhatWasReserved) {
  for (const bool reference : {false, true}) {
    constexpr size_t kRows = 2000;
    GgufBuilder builder;
    for (const uint64_t inputs : {768, 800}) {
      builder.tensor(std::to_string(inputs), {inputs, 32}, kQ8_0, std::string(32 * inputs / 32 * 34, '\1'));
    }
    const std::string text = builder.build();
    const auto file = GgufFile::parse(std::as_bytes(std::span(text))).value();
    const auto ledger = unlimited();
    const auto backend = cpu_backend({.threads = 2, .ledger = ledger, .reference = reference});
    std::vector<std::unique_ptr<Matrix>> matrices;
    for (const GgufTensor& tensor : file->tensors()) matrices.push_back(backend->load_matrix(*file, tensor).value());
    const StepShape largest{.rows = kRows, .inputs = 800, .attention = {}};
    ASSERT_TRUE(backend->reserve(largest));
    EXPECT_EQ(ledger->used(MemoryTag::activations), cpu_scratch_bytes(largest, 2, reference));
    EXPECT_EQ(ledger->used(MemoryTag::activations) == 0, reference);
    const size_t before = ledger->total();
    const std::vector<float> x(kRows * 800, 1.0f);
    std::vector<float> y(kRows * 32);
    for (const auto& matrix : matrices) {
      for (const size_t rows : {size_t{1}, size_t{17}, kRows}) {
        const Product product{matrix.get(), nullptr, y.data()};
        backend->matmul(x.data(), rows, {&product, 1});
        EXPECT_EQ(ledger->total(), before) << matrix->inputs() << " inputs, rows " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace kvarto
