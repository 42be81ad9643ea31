// Every value of tests/golden/kv_events.json as two Python libraries encode it (tools/make_kv_event_golden.py).
#include "server/msgpack.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "base/hash.h"
#include "tests/support/golden.h"

namespace kvarto {
namespace {

std::string hex(std::string_view bytes) {
  return to_hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

std::string write(const std::string& kind, const std::string& value) {
  MsgpackWriter out;
  const auto length = [&] { return static_cast<uint32_t>(std::stoul(value)); };
  if (kind == "nil") out.nil();
  if (kind == "boolean") out.boolean(value == "1");
  if (kind == "unsigned") out.unsigned_integer(std::stoull(value));
  if (kind == "integer") out.integer(std::stoll(value));
  if (kind == "float64") out.float64(std::bit_cast<double>(uint64_t{std::stoull(value, nullptr, 16)}));
  if (kind == "text") out.text(std::string(length(), 'a'));
  if (kind == "binary") out.binary(std::vector<uint8_t>(length(), 'a'));
  if (kind == "array") {
    out.array(length());
    for (uint32_t i = 0; i < length(); ++i) out.nil();
  }
  if (kind == "map") {
    out.map(length());
    for (uint32_t i = 0; i < length(); ++i) {
      out.unsigned_integer(i);
      out.nil();
    }
  }
  return out.take();
}

TEST(Msgpack, WritesWhatPythonsLibrariesWrite) {
  const nlohmann::json values = testing::read_json(testing::source_path("tests/golden/kv_events.json"))["values"];
  ASSERT_GT(values.size(), 50u);
  for (const auto& row : values) {
    const std::string kind = row["kind"], value = row["value"];
    const std::string bytes = write(kind, value);
    EXPECT_EQ(bytes.size(), row["length"].get<size_t>()) << kind << " " << value;
    EXPECT_EQ(hex(std::string_view(bytes).substr(0, 9)), row["start"]) << kind << " " << value;
  }
}

}  // namespace
}  // namespace kvarto
