#include "base/hash.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvarto {
namespace {

std::vector<int32_t> range(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string sha256_hex(std::string_view text) {
  Sha256 sha;
  sha.update(text);
  return to_hex(sha.finish());
}

// Expected digests: FIPS 180-2 examples.
TEST(Sha256, StandardVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesHashLikeTheWhole) {
  Sha256 sha;
  for (int i = 0; i < 1000; ++i) sha.update(std::string(i, 'a'));
  EXPECT_EQ(to_hex(sha.finish()), sha256_hex(std::string(1000 * 999 / 2, 'a')));
}

TEST(Sha256, MovesKeepTheState) {
  Sha256 first;
  first.update("ab");
  Sha256 second = std::move(first);
  second.update("c");
  EXPECT_EQ(to_hex(second.finish()), sha256_hex("abc"));
}

TEST(Hex, LowerCaseTwoDigitsPerByte) {
  const std::array<uint8_t, 4> bytes{0x00, 0x0f, 0xa0, 0xff};
  EXPECT_EQ(to_hex(bytes), "000fa0ff");
  EXPECT_EQ(to_hex({}), "");
}

// RFC 4231, cases 2 and 6: a short key, and one longer than a block of the hash.
TEST(HmacSha256, ReproducesTheVectorsOfItsStandard) {
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// Published vectors of vLLM's sha256_cbor: block size 16, tokens 0..15 then 16..31.
TEST(BlockHash, ReproducesTheChainOfVllm) {
  EXPECT_EQ(to_hex(root_hash()), "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  const BlockHash first = chain_hash(root_hash(), range(0, 16));
  EXPECT_EQ(to_hex(first), "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749");
  EXPECT_EQ(event_id(first), 2233398808101521225u);
  const BlockHash second = chain_hash(first, range(16, 16));
  EXPECT_EQ(to_hex(second), "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c");
  EXPECT_EQ(event_id(second), 17911472383915781900u);
}

TEST(BlockHash, ReproducesTheSaltedBlockOfVllm) {
  // By tools/make_block_example.py, from the page's rule.
  EXPECT_EQ(adapter_root(""), root_hash());
  EXPECT_EQ(to_hex(adapter_root("x1")), "cd5aacc1cdb914fd733da52b4c53038da8cf06c9fabe2d93ec57d9cf6a01c0b3");
  const BlockHash salted = chain_hash(root_hash(), range(0, 16), "s1");
  EXPECT_EQ(to_hex(salted), "37a188ca0f395fb17edb7613ec9f0f06e16dd32556cf8209ea1772c6a9134909");
  EXPECT_EQ(event_id(salted), 16868077126905186569u);
}

// Every width of a CBOR integer on both sides of its edges, an array longer than 255, a text longer than 255 bytes.
// Expected digests: a separate CBOR encoder and hashlib in Python.
TEST(BlockHash, CborWidthsAtTheirEdges) {
  const std::vector<int32_t> edges{0,  23,  24,  255,  256,  65535,  65536,    2147483647,
                                   -1, -24, -25, -256, -257, -65537, INT32_MIN};
  EXPECT_EQ(to_hex(chain_hash(root_hash(), edges)), "a10af694c0d0d39d5c3a623ff3af3fb1fdc8f5900e40b1ec6694358038a33a7e");
  EXPECT_EQ(to_hex(chain_hash(root_hash(), {})), "b85598ff86fb5e95d66e56b3165ec1d7894cfb95730a88a4cdad952dd7702c55");
  std::string salt;
  for (int i = 0; i < 150; ++i) salt += "\xc3\xa9";
  EXPECT_EQ(to_hex(chain_hash(root_hash(), range(1000, 256), salt)),
            "9570665b585a834642f4c7ed63cef73157d202691063531ce1147a6921bd4416");
}

TEST(BlockHash, EmptySaltIsNotTheSameAsNone) {
  EXPECT_NE(chain_hash(root_hash(), range(0, 16), ""), chain_hash(root_hash(), range(0, 16)));
}

}  // namespace
}  // namespace kvarto
