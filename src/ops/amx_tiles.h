// What the AMX tile registers are set up as: the 64 bytes that LDTILECFG reads. Plain data; the registers belong to a
// thread, which loads its own.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace kvarto {

struct TileShape {
  uint8_t rows;
  uint16_t row_bytes;
};

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  constexpr TileConfig(std::initializer_list<TileShape> tiles) {  // from tile 0 on
    int i = 0;
    for (const TileShape& tile : tiles) {
      row_bytes[i] = tile.row_bytes;
      rows[i++] = tile.rows;
    }
  }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace kvarto
