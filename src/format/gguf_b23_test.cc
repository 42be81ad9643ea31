// Case B23, numbers that wrap: every number a GGUF file holds, set to what has broken other readers. Right is an error
// of one line that names the item, at once and without memory; run under ASan and UBSan too.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>

#include "base/file.h"
#include "format/gguf.h"
#include "tests/gguf_builder.h"
#include "tests/gguf_reading.h"

namespace kvarto {
namespace {

using B = GgufBuilder;
constexpr uint64_t k63 = uint64_t{1} << 63;
constexpr uint32_t kF32Type = 0;
constexpr uint32_t kQ8_0Type = 8;

// On the heap and exactly as long as the file, so that ASan sees one byte too many.
Result<std::shared_ptr<const GgufFile>> parse_exact(const std::string& file, std::vector<std::byte>& storage) {
  const auto bytes = std::as_bytes(std::span(file));
  storage = std::vector<std::byte>(bytes.begin(), bytes.end());
  storage.shrink_to_fit();
  return GgufFile::parse(storage, "bad.gguf");
}

void expect_refused(const std::string& file, const std::vector<std::string>& mentions,
                    ErrorCode code = ErrorCode::corrupt) {
  std::vector<std::byte> storage;
  const std::clock_t start = std::clock();
  const auto result = parse_exact(file, storage);
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC);
  ASSERT_FALSE(result) << "was accepted";
  const std::string& message = result.error().message;
  EXPECT_EQ(result.error().code, code) << message;
  EXPECT_TRUE(message.starts_with("bad.gguf: ")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 500u);
  for (const std::string& mention : mentions) EXPECT_NE(message.find(mention), std::string::npos) << message;
}

void expect_loads(const std::string& file) {
  std::vector<std::byte> storage;
  const auto result = parse_exact(file, storage);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_GT(read_everything(**result), 0u);
}

std::string eight_floats() { return std::string(32, '\1'); }

GgufBuilder good() {
  return GgufBuilder().string("general.architecture", "llama").tensor("first", {8}, kF32Type, eight_floats());
}

std::string nested_arrays(int depth) {
  ByteWriter out;
  for (int i = 1; i < depth; ++i) out.number(uint32_t{B::kArray}).number(uint64_t{1});
  return out.number(uint32_t{B::kU8}).number(uint64_t{1}).number(uint8_t{7}).str();
}

TEST(GgufB23, TheUntouchedFileLoads) { expect_loads(good().build()); }

TEST(GgufB23, Alignment) {
  const auto with = [](auto alignment, uint32_t type) {
    return good().scalar("general.alignment", type, alignment).build();
  };
  for (const uint32_t a : {0u, 1u, 3u, 4u, 33u, 48u, 0x80000000u, 0xffffffffu}) {
    expect_refused(with(a, B::kU32), {"general.alignment", std::to_string(a), "power of two"});
  }
  expect_refused(with(k63, B::kU64), {"general.alignment", std::to_string(k63)});
  expect_refused(with(int32_t{-32}, B::kI32), {"general.alignment", "-32"});
  expect_refused(with(32.0f, B::kF32), {"general.alignment"});
  expect_refused(good().string("general.alignment", "32").build(), {"general.alignment"});
  expect_refused(good().array<uint32_t>("general.alignment", B::kU32, {32}).build(), {"general.alignment"});
  for (const uint64_t a : {8, 16, 64, 4096}) {
    GgufBuilder file;
    file.alignment = a;
    file.scalar("general.alignment", B::kU32, static_cast<uint32_t>(a));
    expect_loads(
        file.tensor("a", {3}, kF32Type, std::string(12, 'x')).tensor("b", {8}, kF32Type, eight_floats()).build());
  }
}

TEST(GgufB23, StringLengths) {
  for (const uint64_t length : {uint64_t{1} << 30, k63 - 1, k63, ~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{200}}) {
    const std::string text = ByteWriter().number(length).raw("abc").str();
    expect_refused(good().value("the.key", B::kString, text).build(), {"the.key", std::to_string(length)});
    const std::string list =
        ByteWriter().number(uint32_t{B::kString}).number(uint64_t{2}).string("fine").number(length).raw("abc").str();
    expect_refused(good().value("the.key", B::kArray, list).build(), {"the.key", std::to_string(length)});
  }
}

TEST(GgufB23, ArrayLengths) {
  for (uint32_t type = B::kU8; type <= B::kF64; ++type) {
    for (const uint64_t count : {k63, k63 - 1, uint64_t{1} << 61, ~uint64_t{0}, uint64_t{1} << 32, uint64_t{200}}) {
      const std::string list = ByteWriter().number(type).number(count).raw("abcdefgh").str();
      expect_refused(GgufBuilder().value("the.key", B::kArray, list).build(), {"the.key", std::to_string(count)});
    }
  }
}

// The whole file is 51 bytes: it ends where the elements should begin.
TEST(GgufB23, AnArrayOf2To63AtTheEndOfATinyFile) {
  const std::string list = ByteWriter().number(uint32_t{B::kU8}).number(k63).str();
  const std::string file = GgufBuilder().value("abc", B::kArray, list).build();
  ASSERT_EQ(file.size(), 51u);
  expect_refused(file, {"\"abc\"", std::to_string(k63)});
}

TEST(GgufB23, NestedArrays) {
  expect_loads(GgufBuilder().value("deep", B::kArray, nested_arrays(1)).build());
  expect_loads(GgufBuilder().value("deep", B::kArray, nested_arrays(4)).build());
  for (const int depth : {5, 100, 10000, 200000}) {
    expect_refused(GgufBuilder().value("deep", B::kArray, nested_arrays(depth)).build(), {"\"deep\"", "nested"});
  }
  // Wide instead of deep: each inner array claims what the outer one has.
  ByteWriter wide;
  wide.number(uint32_t{B::kArray}).number(uint64_t{1000});
  for (int i = 0; i < 1000; ++i) wide.number(uint32_t{B::kU8}).number(uint64_t{1} << 40);
  expect_refused(GgufBuilder().value("wide", B::kArray, wide.str()).build(), {"\"wide\""});
}

TEST(GgufB23, Counts) {
  for (const uint64_t count : {k63, ~uint64_t{0}, uint64_t{1} << 59, uint64_t{1} << 32, uint64_t{1000}}) {
    GgufBuilder file = good();
    file.tensor_count = count;
    expect_refused(file.build(), {"tensor count", std::to_string(count)});
    file = good();
    file.value_count = count;
    expect_refused(file.build(), {"key count", std::to_string(count)});
    file.tensor_count = count;
    expect_refused(file.build(), {std::to_string(count)});
  }
  // One too many of either: what follows is read as an entry and does not make sense.
  GgufBuilder file = good();
  file.value_count = 2;
  expect_refused(file.build(), {});
  file = good();
  file.tensor_count = 2;
  expect_refused(file.build(), {});
}

TEST(GgufB23, Dimensions) {
  const auto with = [](const std::vector<uint64_t>& shape, uint32_t type = kF32Type) {
    return good().tensor("the.tensor", shape, type, eight_floats()).build();
  };
  expect_refused(with({k63, 2}), {"the.tensor", "dimension 1"});
  expect_refused(with({k63}), {"the.tensor"});  // 2^63 floats: the bytes overflow
  expect_refused(with({k63, 2, 2, 2}), {"the.tensor"});
  expect_refused(with({uint64_t{1} << 32, uint64_t{1} << 32}), {"the.tensor", "dimension 1"});
  expect_refused(with({uint64_t{1} << 31, uint64_t{1} << 31}), {"the.tensor"});
  expect_refused(with({uint64_t{1} << 62}), {"the.tensor"});
  expect_refused(with({~uint64_t{0}}), {"the.tensor"});
  expect_refused(with({32, k63 / 32}, kQ8_0Type), {"the.tensor"});
  expect_refused(with({}), {"the.tensor", "0 dimensions"});
  expect_refused(with({1, 1, 1, 1, 1}), {"the.tensor", "5 dimensions"});
  expect_refused(with({0}), {"the.tensor", "dimension 0", "size 0"});
  expect_refused(with({8, 0}), {"the.tensor", "dimension 1", "size 0"});
  expect_refused(with({k63, 2, 0}), {"the.tensor"});
  expect_refused(with({16}, kQ8_0Type), {"the.tensor", "16", "32", "Q8_0"});
  expect_refused(with({16, 2}, kQ8_0Type), {"the.tensor", "16", "32", "Q8_0"});
}

TEST(GgufB23, DimensionCountOf2To32) {
  ByteWriter info;
  info.string("the.tensor").number(uint32_t{0xffffffff}).raw(std::string(60, '\1'));
  const std::string file =
      ByteWriter().raw("GGUF").number(3u).number(uint64_t{1}).number(uint64_t{0}).raw(info.str()).str();
  expect_refused(file, {"the.tensor", "4294967295 dimensions"});
}

TEST(GgufB23, Offsets) {
  const auto with = [](uint64_t offset) {
    return good().tensor("second", {8}, kF32Type, eight_floats(), offset).build();
  };
  expect_loads(with(32));
  expect_refused(with(~uint64_t{0} - 63), {"second", "past the end"});
  expect_refused(with(~uint64_t{0} - 31), {"second", "past the end"});
  expect_refused(with(k63), {"second", "past the end"});
  expect_refused(with(64), {"second", "past the end"});
  expect_refused(with(96), {"second", "past the end"});
  for (const uint64_t offset : {uint64_t{1}, uint64_t{31}, uint64_t{33}, uint64_t{48}, ~uint64_t{0}}) {
    expect_refused(with(offset), {"second", std::to_string(offset), "alignment 32"});
  }
  expect_refused(with(0), {"first", "second", "overlap"});
}

TEST(GgufB23, OverlapsOfAnyShape) {
  GgufBuilder inside;
  inside.tensor("outer", {32}, kF32Type, std::string(128, '\1')).tensor("inner", {1}, kF32Type, "", 64);
  expect_refused(inside.build(), {"outer", "inner", "overlap"});
  GgufBuilder tail;
  tail.tensor("b", {9}, kF32Type, std::string(96, '\1'), 32).tensor("a", {9}, kF32Type, "", 0);
  expect_refused(tail.build(), {"\"a\"", "\"b\"", "overlap"});
  GgufBuilder unordered;  // any order and gaps are fine as long as nothing is shared
  unordered.tensor("b", {8}, kF32Type, std::string(128, '\1'), 96).tensor("a", {8}, kF32Type, "", 0);
  expect_loads(unordered.build());
}

TEST(GgufB23, UnknownTypes) {
  for (const uint32_t type : {4u, 5u, 9u, 15u, 31u, 36u, 42u, 999u, 0x80000000u, 0xffffffffu}) {
    expect_refused(good().tensor("the.tensor", {8}, type, eight_floats()).build(),
                   {"the.tensor", "type " + std::to_string(type)}, ErrorCode::unsupported);
  }
  for (const uint32_t type : {13u, 14u, 999u, 0x80000000u, 0xffffffffu}) {
    expect_refused(good().value("the.key", type, "12345678").build(), {"the.key", "type " + std::to_string(type)});
    expect_refused(
        good().value("the.key", B::kArray, ByteWriter().number(type).number(uint64_t{1}).raw("12345678").str()).build(),
        {"the.key", "type " + std::to_string(type)});
  }
}

TEST(GgufB23, Duplicates) {
  expect_refused(
      good().scalar("twice", B::kU32, 1u).scalar("between", B::kU32, 1u).scalar("twice", B::kU32, 1u).build(),
      {"key \"twice\"", "occurs twice"});
  expect_refused(
      good().tensor("second", {8}, kF32Type, eight_floats()).tensor("first", {8}, kF32Type, eight_floats()).build(),
      {"tensor \"first\"", "occurs twice"});
}

TEST(GgufB23, LengthsOfNames) {
  expect_loads(good().scalar(std::string(65535, 'k'), B::kU32, 1u).build());
  expect_refused(good().scalar(std::string(65536, 'k'), B::kU32, 1u).build(), {"key 1", "65536", "65535"});
  expect_refused(good().scalar("", B::kU32, 1u).build(), {"key 1", "empty"});
  expect_loads(good().tensor(std::string(64, 't'), {8}, kF32Type, eight_floats()).build());
  expect_refused(good().tensor(std::string(65, 't'), {8}, kF32Type, eight_floats()).build(), {"tensor 1", "65", "64"});
  expect_refused(good().tensor("", {8}, kF32Type, eight_floats()).build(), {"tensor 1", "empty"});
  // What a name holds is shown on one line.
  expect_refused(good().tensor("a\nb\x80\"", {8}, 999, eight_floats()).build(), {"a\\x0ab\\x80"},
                 ErrorCode::unsupported);
}

TEST(GgufB23, Bools) {
  for (const int b : {2, 127, 128, 255}) {
    expect_refused(good().scalar("flag", B::kBool, static_cast<uint8_t>(b)).build(), {"\"flag\"", std::to_string(b)});
    expect_refused(good().array<uint8_t>("flags", B::kBool, {0, 1, static_cast<uint8_t>(b)}).build(), {"\"flags\""});
  }
}

TEST(GgufB23, HeadersOfOtherKinds) {
  expect_refused(std::string("GGML") + std::string(60, '\0'), {"not a GGUF file"});
  expect_refused("<!DOCTYPE html><html>", {"not a GGUF file"});
  for (const uint32_t version : {0u, 1u, 4u, 0xffffu}) {
    GgufBuilder file = good();
    file.version = version;
    expect_refused(file.build(), {"version " + std::to_string(version)}, ErrorCode::unsupported);
  }
  GgufBuilder big = good();
  big.version = 3u << 24;
  expect_refused(big.build(), {"big-endian"}, ErrorCode::unsupported);
  big.version = 2u << 24;
  expect_refused(big.build(), {"big-endian"}, ErrorCode::unsupported);
}

// The sample of every value type that tools/make_gguf_seeds.py writes.
std::string sample() {
  Result<std::string> file = read_file(KVARTO_SOURCE_DIR "/tests/fuzz/corpus/gguf/small.gguf");
  EXPECT_TRUE(file) << file.error().message;
  return file ? *file : "";
}

TEST(GgufB23, CutAtEveryByte) {
  const std::string file = sample();
  ASSERT_GT(file.size(), 500u);
  expect_loads(file);
  for (size_t size = 0; size < file.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refused(file.substr(0, size), {});
    if (testing::Test::HasFailure()) return;
  }
}

// Whatever number stands where: refused in one line, or everything in the file can be read.
TEST(GgufB23, EveryNumberAtEveryPlace) {
  const std::string file = sample();
  size_t accepted = 0, refused = 0;
  for (size_t at = 4; at + 8 <= file.size(); ++at) {
    for (const uint64_t number :
         {uint64_t{0}, uint64_t{1} << 31, uint64_t{0xffffffff}, k63, ~uint64_t{0}, ~uint64_t{0} - 63}) {
      std::string changed = file;
      std::memcpy(changed.data() + at, &number, 8);
      std::vector<std::byte> storage;
      const auto result = parse_exact(changed, storage);
      if (result) {
        EXPECT_GT(read_everything(**result), 0u);
        ++accepted;
      } else {
        EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
        ++refused;
      }
    }
  }
  EXPECT_GT(accepted, 100u);  // inside tensor data and numbers
  EXPECT_GT(refused, 1000u);
}

// The peak of resident memory of a child process that runs `work`, in KiB.
template <typename Work>
long peak_kib(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  struct rusage usage {};
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  return usage.ru_maxrss;
}

TEST(GgufB23, LyingNumbersTakeNoMemory) {
  std::vector<std::string> files;
  for (const uint64_t count : {k63, uint64_t{1} << 30, uint64_t{1} << 32}) {
    for (const uint32_t type : {B::kU8, B::kString, B::kArray, B::kF64}) {
      files.push_back(GgufBuilder().value("k", B::kArray, ByteWriter().number(type).number(count).str()).build());
    }
    files.push_back(GgufBuilder().value("k", B::kString, ByteWriter().number(count).str()).build());
    GgufBuilder file = good();
    file.tensor_count = count;
    files.push_back(file.build());
    file = good();
    file.value_count = count;
    files.push_back(file.build());
  }
  const long idle = peak_kib([] {});
  const long busy = peak_kib([&] {
    for (const std::string& file : files) {
      if (GgufFile::parse(std::as_bytes(std::span(file)))) ::_exit(1);
    }
  });
  EXPECT_LT(busy - idle, 64 * 1024);
}

TEST(GgufB23, AMissingTensorIsMissingAndNothingElse) {
  std::vector<std::byte> storage;
  const auto file = parse_exact(good().build(), storage);
  ASSERT_TRUE(file);
  EXPECT_EQ((*file)->find_tensor("blk.0.ffn_gate_exps.weight"), nullptr);
  EXPECT_NE((*file)->find_tensor("first"), nullptr);
}

}  // namespace
}  // namespace kvarto
