// Device only: in which order blocks take the tiles of a product. Needs no torch.
#pragma once

namespace my_ops {

template <typename Index>
struct TilePosition {
  Index row, col;  // in tiles
};

// Tiles go in bands of kBand tile rows, column by column inside a band, so that the blocks running
// together share what they read through L2.
template <typename Index>
__device__ __forceinline__ TilePosition<Index> tile_position(Index tile, Index row_tiles,
                                                             Index col_tiles) {
  constexpr Index kBand = 8;
  const Index band = tile / (kBand * col_tiles);
  const Index left = row_tiles - band * kBand;
  const Index height = left < kBand ? left : kBand;
  const Index within = tile - band * kBand * col_tiles;
  return {band * kBand + within % height, within / height};
}

}  // namespace my_ops
