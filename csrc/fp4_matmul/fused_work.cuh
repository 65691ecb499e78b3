// What a block of the fused kernel does one after the other: tiles, or a part of a tile's K; and
// how a warp's ring begins with it. Device only, needs no torch.
#pragma once

#include "common/sm90_cluster.cuh"
#include "common/tile_position.cuh"
#include "fp4_matmul/fused_ring.cuh"

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
  int cluster, rank, first, stride, end;
  int part = 0;  // of a tile's K, this cluster's

  __device__ __forceinline__ explicit FusedWorks(const FusedArguments& args)
      : args(args),
        cluster(args.splits * args.sharers),
        rank(sm90::cluster_rank()),
        first(sm90::cluster_index()),
        stride(sm90::clusters()),
        end(args.works) {}

  // Several clusters have a tile, each with a part of K.
  __device__ __forceinline__ void share_tiles() {
    part = first % args.mail.parts;
    first /= args.mail.parts;
  }

  // The step with which the part of K of block `rank` begins; and, for the number of blocks, where
  // that of the last one ends.
  __device__ __forceinline__ int part_begin(int rank) const {
    return args.part_begin[part * args.splits + rank];
  }

  // Bands of eight token tiles keep their x in L2, 32 MB at K = 8192, for all rows of the weight.
  template <typename Tile>
  __device__ __forceinline__ FusedWork at(int number) const {
    if constexpr (!Tile::kTakesMap) {
      const int row_tile = args.token_tiles == 1 ? number : number / args.token_tiles;
      return {
          row_tile, number - row_tile * args.token_tiles, part_begin(rank), part_begin(rank + 1),
          false,    Tile::kMail || args.splits > 1};
    }
    const bool tail = number >= args.tail;
    const int behind = number - args.tail;
    const auto tile =
        tile_position(tail ? args.tail + behind / 2 : number, args.token_tiles, args.row_clusters);
    const int rows = tail ? behind % 2 : (args.sharers > 1 ? rank : 0);
    const bool split = tail || args.splits > 1;
    const int half = args.steps / 2;
    return {tile.col * args.sharers + rows, tile.row,
            split && rank == 1 ? half : 0,  split && rank == 0 ? half : args.steps,
            args.sharers > 1 && !tail,      split};
  }
};

// The first of a warp's 16 rows of the weight in a tile. The last ones overlap those before where N
// is not a multiple of 16; those are not stored (StripWriter). Slots of a block have zeros behind
// N.
template <typename Tile>
__device__ __forceinline__ int warp_row(const FusedArguments& args, const FusedWork& work,
                                        int warp) {
  const int row = work.row_tile * Tile::kRows + warp % Tile::kRowWarps * 16;
  return Tile::kBlockSlots ? row : min(row, static_cast<int>(args.out.N) - 16);
}

template <typename Tile>
__device__ __forceinline__ void aim_ring(const FusedArguments& args, WeightRing<Tile>& ring,
                                         const FusedWork& work, int warp) {
  const int group = warp / Tile::kRowWarps;
  ring.aim(warp_row<Tile>(args, work, warp), work.first_step + group,
           (work.steps() - group + Tile::kDepthGroups - 1) / Tile::kDepthGroups);
}

// A loop of few instructions: a launch has to fetch them.
template <typename Tile>
__device__ __forceinline__ void fill_ring(WeightRing<Tile>& ring) {
#pragma unroll 1
  for (int i = 0; i < Tile::kSlots - 1; ++i) ring.fetch();
}

}  // namespace my_ops
