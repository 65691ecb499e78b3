// What a block of the fused kernel does one after the other: tiles, or a part of a tile's K. Device
// only, needs no torch.
#pragma once

#include "common/tile_position.cuh"
#include "fp4_matmul/fused_tile.cuh"

namespace my_ops {

struct FusedWork {
  int row_tile, token_tile;
  int first_step, end_step;
  bool shared;  // other blocks of the cluster want the same rows of x
  bool split;   // they have other parts of the same sums

  __device__ __forceinline__ int steps() const { return end_step - first_step; }
};

// The works of this block have the numbers first, first + stride and so on below `end`. From
// args.tail on one is half of K of one row tile, so that a last round takes half as long. There are
// no more of these than clusters: each has one at most, its last work.
struct FusedWorks {
  const FusedArguments& args;
  int cluster, rank, first, stride, row_clusters, end;

  __device__ __forceinline__ explicit FusedWorks(const FusedArguments& args)
      : args(args),
        cluster(args.splits * args.sharers),
        rank(blockIdx.x % cluster),
        first(blockIdx.x / cluster),
        stride(gridDim.x / cluster),
        row_clusters((args.row_tiles + args.sharers - 1) / args.sharers),
        end(2 * row_clusters * args.token_tiles - args.tail) {}

  // Bands of eight token tiles keep their x in L2, 32 MB at K = 8192, for all rows of the weight.
  template <typename Tile>
  __device__ __forceinline__ FusedWork at(int number) const {
    if constexpr (!Tile::kTakesMap) {
      const int part = args.splits > 1 ? rank : 0;
      return {number / args.token_tiles,
              number % args.token_tiles,
              static_cast<int>(int64_t{args.steps} * part / args.splits),
              static_cast<int>(int64_t{args.steps} * (part + 1) / args.splits),
              false,
              args.splits > 1};
    }
    const bool tail = number >= args.tail;
    const int behind = number - args.tail;
    const auto tile =
        tile_position(tail ? args.tail + behind / 2 : number, args.token_tiles, row_clusters);
    const int rows = tail ? behind % 2 : (args.sharers > 1 ? rank : 0);
    const int parts = tail ? 2 : args.splits, part = parts > 1 ? rank : 0;
    return {tile.col * args.sharers + rows,
            tile.row,
            static_cast<int>(int64_t{args.steps} * part / parts),
            static_cast<int>(int64_t{args.steps} * (part + 1) / parts),
            args.sharers > 1 && !tail,
            parts > 1};
  }
};

}  // namespace my_ops
