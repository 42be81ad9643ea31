#include "format/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "tests/gguf_builder.h"
#include "tests/gguf_reading.h"

namespace kvarto {
namespace {

using B = GgufBuilder;
using File = std::shared_ptr<const GgufFile>;

// Keeps the bytes that the file points into.
struct Parsed {
  std::string bytes;
  File file;
  explicit Parsed(const GgufBuilder& builder) : bytes(builder.build()) {
    auto result = GgufFile::parse(std::as_bytes(std::span(bytes)), "test.gguf");
    EXPECT_TRUE(result) << result.error().message;
    if (result) file = *result;
  }
  const GgufFile* operator->() const { return file.get(); }
};

template <typename T>
std::string message_of(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

// Written by tools/make_gguf_seeds.py, not by our own builder.
TEST(Gguf, ReadsTheSampleOfEveryValueType) {
  const auto opened = GgufFile::open(KVARTO_SOURCE_DIR "/tests/fuzz/corpus/gguf/small.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  const GgufFile& file = **opened;
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.keys().size(), 17u);
  EXPECT_EQ(file.keys().front(), "general.architecture");
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_uint("test.u8"), 200u);
  EXPECT_EQ(file.get_int("test.i8"), -100);
  EXPECT_EQ(file.get_uint("test.u16"), 60000u);
  EXPECT_EQ(file.get_int("test.i16"), -30000);
  EXPECT_EQ(file.get_uint("test.u32"), 4000000000u);
  EXPECT_EQ(file.get_int("test.i32"), -2000000000);
  EXPECT_EQ(file.get_float("test.f32"), double{0.1f});
  EXPECT_EQ(file.get_bool("test.bool"), true);
  EXPECT_EQ(file.get_uint("test.u64"), (uint64_t{1} << 63) + 1);
  EXPECT_EQ(file.get_int("test.i64"), -(int64_t{1} << 62));
  EXPECT_EQ(file.get_float("test.f64"), 0.1);
  EXPECT_EQ(file.get_strings("test.strings"), (std::vector<std::string_view>{"a", "", "\xc3\xa9\xc3\x9f"}));
  EXPECT_EQ(file.get_ints("test.i32s"), (std::vector<int64_t>{-1, 0, 7}));
  EXPECT_EQ(file.get_floats("test.f32s"), (std::vector<float>{0.5f, -2.0f}));
  EXPECT_EQ(file.get_bools("test.bools"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(file.get_uints("test.none"), std::vector<uint64_t>{});
  // Computed in Python with hashlib.
  EXPECT_EQ(file.fingerprint(), "12dfdee3d7f91857c19f5f2e64b23eac44176cf56dd45f7cc7fb1e198151ef3d");

  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor& a = *file.find_tensor("a.weight");
  EXPECT_STREQ(a.type->name, "F32");
  EXPECT_EQ(a.shape, (std::vector<uint64_t>{4, 2}));
  EXPECT_EQ(a.elements, 8u);
  std::vector<float> numbers(8);
  ASSERT_EQ(a.bytes.size(), 32u);
  std::memcpy(numbers.data(), a.bytes.data(), 32);
  EXPECT_EQ(numbers, (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  const GgufTensor& b = *file.find_tensor("b.weight");
  EXPECT_STREQ(b.type->name, "Q8_0");
  ASSERT_EQ(b.bytes.size(), 34u);
  EXPECT_EQ(b.bytes[2], static_cast<std::byte>(-16));
  EXPECT_EQ(b.bytes[33], std::byte{15});
}

TEST(Gguf, AbsentIsNotAnError) {
  const Parsed file(GgufBuilder().scalar("k", B::kU32, 1u));
  EXPECT_EQ(file->get_uint("x"), std::nullopt);
  EXPECT_EQ(file->get_string(""), std::nullopt);
  EXPECT_EQ(file->get_strings("kk"), std::nullopt);
  EXPECT_FALSE(file->has("x"));
  EXPECT_TRUE(file->has("k"));
  EXPECT_EQ(file->describe("x"), "");
  EXPECT_EQ(file->find_tensor("x"), nullptr);
}

TEST(Gguf, NoKeysAndNoTensorsIsAFileToo) {
  const Parsed file{GgufBuilder()};
  EXPECT_TRUE(file->keys().empty());
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->fingerprint().size(), 64u);
}

// Old writers stored the same facts under other scalar types: read where nothing is lost.
TEST(Gguf, ScalarsConvertWhereNothingIsLost) {
  const Parsed file(GgufBuilder()
                        .scalar("i8", B::kI8, int8_t{7})
                        .scalar("u64", B::kU64, uint64_t{7})
                        .scalar("negative", B::kI32, int32_t{-7})
                        .scalar("huge", B::kU64, ~uint64_t{0})
                        .scalar("odd", B::kU64, (uint64_t{1} << 53) + 1)
                        .scalar("most", B::kI64, INT64_MAX)
                        .scalar("least", B::kI64, INT64_MIN)
                        .scalar("one", B::kU8, uint8_t{1})
                        .scalar("yes", B::kBool, uint8_t{1})
                        .scalar("f32", B::kF32, 2.0f)
                        .scalar("f64", B::kF64, 1e-5)
                        .string("text", "7"));
  EXPECT_EQ(file->get_uint("i8"), 7u);
  EXPECT_EQ(file->get_int("u64"), 7);
  EXPECT_EQ(file->get_float("negative"), -7.0);
  EXPECT_EQ(file->get_float("least"), -0x1p63);
  EXPECT_EQ(file->get_int("most"), INT64_MAX);
  EXPECT_EQ(file->get_bool("one"), true);
  EXPECT_EQ(file->get_uint("yes"), 1u);
  EXPECT_EQ(file->get_float("f64"), 1e-5);

  EXPECT_EQ(message_of(file->get_uint("negative")),
            "test.gguf: key \"negative\" is i32 (-7), wanted an unsigned integer");
  EXPECT_FALSE(file->get_int("huge"));
  EXPECT_FALSE(file->get_float("huge"));
  EXPECT_FALSE(file->get_float("odd"));
  EXPECT_FALSE(file->get_float("most"));
  EXPECT_FALSE(file->get_float("yes"));
  EXPECT_FALSE(file->get_uint("f32"));
  EXPECT_FALSE(file->get_bool("i8"));
  EXPECT_FALSE(file->get_bool("f32"));
  EXPECT_FALSE(file->get_string("i8"));
  EXPECT_FALSE(file->get_uint("text"));
  EXPECT_EQ(message_of(file->get_float("text")), "test.gguf: key \"text\" is string (7), wanted a number");
}

TEST(Gguf, ArraysConvertElementByElement) {
  const Parsed file(GgufBuilder()
                        .array<uint32_t>("u32", B::kU32, {1, 2})
                        .array<int32_t>("mixed", B::kI32, {1, -2})
                        .array<double>("doubles", B::kF64, {0.5, 0.1})
                        .array<double>("halves", B::kF64, {0.5, -HUGE_VAL, 1e30f})
                        .array<double>("beyond", B::kF64, {1e300})
                        .array<uint8_t>("bits", B::kU8, {0, 1})
                        .strings("texts", {"a", "bc"})
                        .scalar("scalar", B::kU16, uint16_t{9})
                        .string("text", "t")
                        .strings("none", {}));
  EXPECT_EQ(file->get_uints("u32"), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(file->get_floats("u32"), (std::vector<float>{1, 2}));
  EXPECT_EQ(file->get_ints("mixed"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(message_of(file->get_uints("mixed")),
            "test.gguf: key \"mixed\" is array of 2 i32, wanted unsigned integers");
  EXPECT_EQ(file->get_floats("halves"), (std::vector<float>{0.5f, -HUGE_VALF, 1e30f}));
  EXPECT_FALSE(file->get_floats("doubles"));
  EXPECT_FALSE(file->get_floats("beyond"));
  EXPECT_EQ(file->get_bools("bits"), (std::vector<bool>{false, true}));
  EXPECT_FALSE(file->get_bools("u32"));
  EXPECT_FALSE(file->get_uints("texts"));
  EXPECT_EQ(file->get_uints("scalar"), (std::vector<uint64_t>{9}));
  EXPECT_EQ(file->get_strings("text"), (std::vector<std::string_view>{"t"}));
  EXPECT_EQ(message_of(file->get_uint("u32")), "test.gguf: key \"u32\" is array of 2 u32, wanted an unsigned integer");
  EXPECT_EQ(file->get_uints("none"), std::vector<uint64_t>{});
  EXPECT_EQ(file->get_floats("none"), std::vector<float>{});
}

TEST(Gguf, NestedArraysAreSteppedOverAndNotRead) {
  const auto opened = GgufFile::open(KVARTO_SOURCE_DIR "/tests/fuzz/corpus/gguf/nested2.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->describe("deep"), "[1 array]");
  EXPECT_FALSE((*opened)->get_uints("deep"));
  EXPECT_FALSE((*opened)->get_strings("deep"));
}

TEST(Gguf, Describe) {
  const Parsed file(GgufBuilder()
                        .string("arch", "llama")
                        .string("long", std::string(500, 'x'))
                        .string("lines", "a\nb")
                        .scalar("u", B::kU32, 7u)
                        .scalar("i", B::kI8, int8_t{-7})
                        .scalar("f", B::kF32, 0.1f)
                        .scalar("d", B::kF64, 1e-5)
                        .scalar("b", B::kBool, uint8_t{0})
                        .strings("tokens", std::vector<std::string>(300, "t"))
                        .strings("single", {"t"})
                        .array<float>("scores", B::kF32, {1, 2, 3}));
  EXPECT_EQ(file->describe("arch"), "llama");
  EXPECT_EQ(file->describe("long"), std::string(80, 'x').append("..."));
  EXPECT_EQ(file->describe("lines"), "a\\x0ab");
  EXPECT_EQ(file->describe("u"), "7");
  EXPECT_EQ(file->describe("i"), "-7");
  EXPECT_EQ(file->describe("f"), "0.1");
  EXPECT_EQ(file->describe("d"), "1e-05");
  EXPECT_EQ(file->describe("b"), "false");
  EXPECT_EQ(file->describe("tokens"), "[300 strings]");
  EXPECT_EQ(file->describe("single"), "[1 string]");
  EXPECT_EQ(file->describe("scores"), "[3 f32]");
}

// Sizes of the types that the sample files lack, from the public table.
TEST(Gguf, TypeTable) {
  const std::map<std::string, std::pair<uint32_t, uint32_t>> some{{"F64", {1, 8}},      {"I8", {1, 1}},
                                                                  {"IQ1_M", {256, 56}}, {"TQ2_0", {256, 66}},
                                                                  {"NVFP4", {64, 36}},  {"Q1_0", {128, 18}}};
  for (const auto& [name, sizes] : some) {
    const GgufTypeInfo* type = gguf_type_info(name);
    ASSERT_NE(type, nullptr) << name;
    EXPECT_EQ(type->block_elements, sizes.first) << name;
    EXPECT_EQ(type->block_bytes, sizes.second) << name;
    EXPECT_EQ(gguf_type_info(type->id), type);
  }
  EXPECT_EQ(gguf_type_info(999u), nullptr);
  EXPECT_EQ(gguf_type_info("Q9_K"), nullptr);
}

GgufBuilder model(const std::string& data, const std::string& token, bool reordered = false) {
  GgufBuilder file;
  if (reordered) file.alignment = 64;
  if (reordered) file.scalar("general.alignment", B::kU32, 64u).strings("tokenizer.ggml.tokens", {token});
  file.string("general.architecture", "llama").scalar("llama.block_count", B::kU32, 1u);
  if (!reordered) file.string("general.name", "first").strings("tokenizer.ggml.tokens", {token});
  if (reordered) file.tensor("b", {2}, 0, "12345678");
  file.tensor("a", {2}, 0, data);
  if (!reordered) file.tensor("b", {2}, 0, "12345678");
  return file;
}

TEST(Gguf, FingerprintIsThatOfTheModelNotOfTheFile) {
  const std::string original = Parsed(model("abcdefgh", "t"))->fingerprint();
  EXPECT_EQ(original.size(), 64u);
  EXPECT_EQ(Parsed(model("abcdefgh", "t", true))->fingerprint(), original)
      << "order, alignment and name are not the model";
  EXPECT_NE(Parsed(model("abcdefgi", "t"))->fingerprint(), original) << "data";
  EXPECT_NE(Parsed(model("abcdefgh", "u"))->fingerprint(), original) << "vocabulary";
  GgufBuilder deeper = model("abcdefgh", "t");
  EXPECT_NE(Parsed(deeper.scalar("llama.rope.freq_base", B::kF32, 1e5f))->fingerprint(), original)
      << "architecture key";
  GgufBuilder named = model("abcdefgh", "t");
  EXPECT_EQ(Parsed(named.string("general.author", "somebody"))->fingerprint(), original) << "author";
}

// ---- the sample models, where they have been fetched ----

struct RealModel {
  const char* file;
  const char* architecture;
  size_t tensors;
  uint64_t elements;
  uint64_t layers;
  size_t tokens;
  std::map<std::string, int> types;
};

class GgufRealModel : public testing::TestWithParam<RealModel> {};

TEST_P(GgufRealModel, IsWhatItsCardSays) {
  const RealModel& want = GetParam();
  const std::string path = std::string(KVARTO_SOURCE_DIR "/models/") + want.file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " has not been fetched";
  const auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened) << opened.error().message;
  const GgufFile& file = **opened;
  EXPECT_EQ(file.get_string("general.architecture"), want.architecture);
  EXPECT_EQ(file.get_uint(std::string(want.architecture) + ".block_count"), want.layers);
  EXPECT_EQ(file.get_strings("tokenizer.ggml.tokens")->value().size(), want.tokens);
  EXPECT_EQ(file.tensors().size(), want.tensors);
  uint64_t elements = 0;
  std::map<std::string, int> types;
  for (const GgufTensor& tensor : file.tensors()) {
    elements += tensor.elements;
    ++types[tensor.type->name];
    EXPECT_EQ(file.find_tensor(tensor.name), &tensor);
  }
  EXPECT_EQ(elements, want.elements);
  EXPECT_EQ(types, want.types);
}

INSTANTIATE_TEST_SUITE_P(
    Models, GgufRealModel,
    testing::Values(
        RealModel{
            "smollm2-135m-q4_1.gguf", "llama", 272, 134515008, 30, 49152, {{"Q4_1", 210}, {"Q8_0", 1}, {"F32", 61}}},
        RealModel{"gemma3-270m-q4km.gguf",
                  "gemma3",
                  236,
                  268098176,
                  18,
                  262144,
                  {{"Q5_0", 81}, {"Q4_K", 27}, {"Q8_0", 10}, {"Q6_K", 9}, {"F32", 109}}},
        RealModel{"tm05.gguf",
                  "qwen2",
                  291,
                  630167424,
                  24,
                  151936,
                  {{"Q5_0", 133}, {"Q8_0", 13}, {"Q6_K", 12}, {"Q4_K", 12}, {"F32", 121}}}),
    [](const auto& info) { return std::string(info.param.architecture); });

uint64_t resident_bytes() {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Gguf, ReleasedPagesLeaveTheProcessAndReadTheSameAgain) {
  const std::string path = KVARTO_SOURCE_DIR "/models/smollm2-135m-q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " has not been fetched";
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  const GgufTensor& embedding = *(*file)->find_tensor("token_embd.weight");
  const auto sum = [&] {
    return std::accumulate(embedding.bytes.begin(), embedding.bytes.end(), uint64_t{0},
                           [](uint64_t s, std::byte b) { return s * 31 + std::to_integer<uint64_t>(b); });
  };
  const uint64_t before = sum();
  const uint64_t touched = resident_bytes();
  (*file)->release(embedding);
  EXPECT_LT(resident_bytes() + embedding.bytes.size() * 9 / 10, touched);
  EXPECT_EQ(sum(), before);
}

}  // namespace
}  // namespace kvarto
