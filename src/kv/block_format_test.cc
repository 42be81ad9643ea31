// The worked example of docs/block_format.md: the bytes and names that real code makes are those that
// tools/make_block_example.py computed from the page's rules, and the page shows these figures.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kv/attend.h"
#include "kv/cache_core.h"
#include "kv/testing.h"

namespace kvarto {
namespace {

using namespace kvarto::testing;
using Json = nlohmann::json;
using Tokens = std::vector<TokenId>;

constexpr uint32_t kHeads = 2, kDims = 4;

std::string read_text(const std::string& path) {
  std::ifstream file(std::string(KVARTO_SOURCE_DIR) + "/" + path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const Json& example() {
  static const Json json = Json::parse(read_text("tests/golden/block_example.json"));
  return json;
}

Tokens range(TokenId first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A cache of the example's one layer, filled through the real append().
class Example {
 public:
  explicit Example(KvLayoutOptions options, SimdTarget target = SimdTarget::scalar) : target_(target) {
    const KvLayout layout = *KvLayout::make({{full_layer(kHeads, kDims)}}, options);
    core_ = std::move(*CacheCore::create(layout, std::make_shared<PlainMemory>(), {.bytes = 1 << 20}));
  }
  ~Example() { core_->release(state_); }

  void fill(const Tokens& tokens, std::string salt = "") {
    core_->open(state_, tokens, {.cache_salt = std::move(salt), .read_cache = false});
    ASSERT_TRUE(core_->reserve(state_, static_cast<uint32_t>(tokens.size())));
    std::vector<float> k, v;
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (uint32_t i = 0; i < kHeads * kDims; ++i) {
        k.push_back(static_cast<float>(64 * (i / kDims) + 4 * t + i % kDims));
        v.push_back(k.back() + 0.5f);
      }
    }
    const AppendRows rows{.view = &state_.views[0],
                          .count = static_cast<uint32_t>(tokens.size()),
                          .k = k.data(),
                          .k_stride = kHeads * kDims,
                          .v = v.data(),
                          .v_stride = kHeads * kDims};
    append(target_, {&rows, 1}, pool_);
    core_->commit(state_, tokens);
  }

  std::span<const std::byte> block(size_t index) const {
    return {core_->store().pool().address(state_.groups[0].ids[index]), core_->layout().groups()[0].block_bytes};
  }
  // The name under which the index finds the sequence's block; empty when it does not know the bytes' block by it.
  std::string name(size_t index) const {
    const uint32_t b = core_->layout().block_tokens();
    const PrefixIndex& prefix = core_->store().index();
    const NodeId node = prefix.find(state_.hashes[index], std::span(state_.tokens).subspan(index * b, b));
    if (node == kNoNode || prefix.block(node, 0) != state_.groups[0].ids[index]) return {};
    return to_hex(prefix.hash(node));
  }

 private:
  SimdTarget target_;
  ThreadPool pool_{1};
  std::unique_ptr<CacheCore> core_;
  KvSequenceState state_;
};

std::string hex_at(std::span<const std::byte> bytes, size_t at, size_t count) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
  return to_hex({first, count});
}

std::string digest(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.update(bytes);
  return to_hex(sha.finish());
}

TEST(BlockFormat, BytesOfTheExample) {
  for (const SimdTarget target : available_targets()) {
    for (const bool separate_tails : {false, true}) {
      Example cache({.separate_tails = separate_tails}, target);
      cache.fill(range(0, 40));
      ASSERT_EQ(cache.block(0).size(), example()["block_bytes"].get<size_t>());
      for (const auto& [at, hex] : example()["first_bytes"].items()) {
        EXPECT_EQ(hex_at(cache.block(0), std::stoul(at), 8), hex.get<std::string>()) << "at " << at;
      }
      const Json& digests = example()["sha256_of_bytes"];
      EXPECT_EQ(digest(cache.block(0)), digests["float16, block 0 of 16"].get<std::string>());
      EXPECT_EQ(digest(cache.block(1)), digests["float16, block 1 of 16"].get<std::string>());
    }
  }
}

TEST(BlockFormat, BytesOfOtherTypesAndSizes) {
  const Json& digests = example()["sha256_of_bytes"];
  Example wide({.block_tokens = 32});
  wide.fill(range(0, 40));
  EXPECT_EQ(digest(wide.block(0)), digests["float16, block 0 of 32"].get<std::string>());
  Example bf16({.k_dtype = KvDtype::bf16, .v_dtype = KvDtype::bf16});
  bf16.fill(range(0, 16));
  EXPECT_EQ(digest(bf16.block(0)), digests["bfloat16, block 0 of 16"].get<std::string>());
}

// An open block has its tokens in place already; slots without a token hold what was there before.
TEST(BlockFormat, OpenBlockIsFilledInPlace) {
  Example cache({});
  cache.fill(range(0, 21));
  const std::span<const std::byte> open = cache.block(1);
  const std::string row = hex_at(open, 0, 32);  // dim 0 of the keys of head 0, tokens 16 to 31
  EXPECT_EQ(row.substr(0, 20), example()["open_block_first_bytes"].get<std::string>());
  EXPECT_EQ(row.substr(20), "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5");  // PlainMemory's pattern
}

TEST(BlockFormat, NamesOfTheExample) {
  const Json& names = example()["names"];
  EXPECT_EQ(to_hex(root_hash()), names["root"].get<std::string>());
  Example plain({});
  plain.fill(range(0, 40));
  EXPECT_EQ(plain.name(0), names["block 0"].get<std::string>());
  EXPECT_EQ(plain.name(1), names["block 1"].get<std::string>());
  Example salted({});
  salted.fill(range(0, 40), "s1");
  EXPECT_EQ(salted.name(0), names["block 0, salt s1"].get<std::string>());
  EXPECT_EQ(salted.name(1), names["block 1, salt s1"].get<std::string>());
  const BlockHash adapted = adapter_root("x1");
  EXPECT_EQ(to_hex(adapted), names["root, adapter x1"].get<std::string>());
  EXPECT_EQ(to_hex(chain_hash(adapted, range(0, 16))), names["block 0, adapter x1"].get<std::string>());
  Example wide({});
  wide.fill(example()["wide_tokens"].get<Tokens>());
  EXPECT_EQ(wide.name(0), names["wide tokens"].get<std::string>());
}

TEST(BlockFormat, PageShowsTheExample) {
  const std::string page = read_text("docs/block_format.md");
  const auto shown = [&](const Json& value) { return page.find(value.get<std::string>()) != std::string::npos; };
  for (const char* table : {"first_bytes", "sha256_of_bytes", "names"}) {
    for (const auto& [what, hex] : example()[table].items()) EXPECT_TRUE(shown(hex)) << table << ": " << what;
  }
  EXPECT_TRUE(shown(example()["cbor_of_block_0"]));
}

}  // namespace
}  // namespace kvarto
