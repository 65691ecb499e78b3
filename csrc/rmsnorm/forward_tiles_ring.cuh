// The ring of tiles in a block of forward_tiles_kernel.cuh, and the warps that do not compute.
// Device only, compute capability 9.0 and later, needs no torch.
#pragma once

#include <cstdint>

#include "common/ring_place.cuh"
#include "rmsnorm/forward_args.cuh"
#include "rmsnorm/forward_tiles_sums.cuh"
#include "rmsnorm/staged_slice.cuh"

namespace my_ops {

// Chunks of a tile that one warp adds up.
constexpr int kTilePartChunks = 1024;

// A ring of 192 KB. Tiles of 16 KB came to 94 % of the copy rate at 262144 columns of float32,
// those of 32 KB to 96; slots that do not begin at 128 bytes cost 6 %.
// Twice the sums in global memory cost 1 % more, so both parts of a tile are added up in the block.
// Where something is added, tiles have one part, and the sums of two are added up later: the same
// bits.
template <Access kAccess, bool kAdd>
struct TileShape {
  static constexpr int kParts = kAdd ? 1 : 2;
  static constexpr int kChunks = kParts * kTilePartChunks;
  static constexpr int kSlots = 6;
  static constexpr int kTensors = kAdd ? 2 : 1;   // that a slot has a tile of
  static constexpr int kInFlight = kAdd ? 2 : 3;  // tiles on their way at the same time
  // Tiles that are added up at the same time: more warps than needed cost a little.
  static constexpr int kSumTiles = kAdd ? 4 : kAccess == Access::packs ? 1 : 2;
  static constexpr int kSumWarps = kSumTiles * kParts;
  static constexpr int kStoreWarps = 8;
  static constexpr int kOtherWarps = 3;
  static constexpr int kThreads = (kOtherWarps + kSumWarps + kStoreWarps) * kWarpSize;
  static constexpr int kTileBytes =
      kChunks * kChunkBytes + (kAccess == Access::shifted_packs ? 128 : 0);
  static constexpr int kSharedBytes = kSlots * kTensors * kTileBytes;
  // When a warp turns to its next tile, the tile that its slot had before has come: a parity is
  // enough to tell the two apart.
  static_assert(kSumTiles + kInFlight <= kSlots);
};

// What the slots hold, beside the tiles themselves.
template <typename Shape>
struct TileRing {
  MBarrier full[Shape::kSlots];
  MBarrier ready[Shape::kSlots];  // the total of the row is there
  MBarrier empty[Shape::kSlots];
  int64_t rows[Shape::kSlots];
  int slices[Shape::kSlots];  // negative: there are no more tiles
  double totals[Shape::kSlots];
  double first_parts[Shape::kSlots];  // of the sum; negative: not there yet

  __device__ __forceinline__ void init(int ready_arrivals, int empty_arrivals) {
    for (int slot = 0; slot < Shape::kSlots; ++slot) {
      full[slot].init(1);
      ready[slot].init(ready_arrivals);
      empty[slot].init(empty_arrivals);
      first_parts[slot] = -1;
    }
    sm90::fence_barrier_init();
  }

  // Takes one part of the sum of a tile, and returns the sum where it was the last: there is no
  // order in a sum of two. Negative otherwise.
  __device__ __forceinline__ double add_part(int slot, double sum) {
    sum = TileSums::unsigned_sum(sum);
    if constexpr (Shape::kParts == 2) {
      const double first = __longlong_as_double(static_cast<long long>(
          atomicExch(reinterpret_cast<unsigned long long*>(&first_parts[slot]),
                     static_cast<unsigned long long>(__double_as_longlong(sum)))));
      if (!TileSums::there(first)) return first;
      first_parts[slot] = -1;
      sum = TileSums::unsigned_sum(first + sum);
    }
    return sum;
  }
};

// A tile: one slice of a row, in one of the places in shared memory.
template <typename Shape, Access kAccess, typename x_t>
__device__ __forceinline__ StagedSlice<kAccess, x_t> tile_at(unsigned char* places, int place,
                                                             const x_t* tensor,
                                                             const RowLayout& layout, int64_t row,
                                                             int slice, int chunks) {
  const int64_t column = static_cast<int64_t>(slice) * Shape::kChunks * kChunkElements<x_t>;
  return {places + place * Shape::kTileBytes, tensor + layout.offset(row) + column, chunks};
}

// One thread draws tiles and has them brought.
template <typename Shape, Access kAccess, typename x_t, typename w_t>
__device__ __forceinline__ void fill_tiles(const ForwardArgs<x_t, w_t>& args, const TileSums& sums,
                                           unsigned char* places, TileRing<Shape>& ring,
                                           int row_chunks) {
  using Place = RingPlace<Shape::kSlots>;
  const auto slices = static_cast<unsigned>(args.slices);
  int sent = 0;
  int ends = 0;  // each warp that adds up looks for one
  for (Place place; ends < Shape::kSumTiles; place = place.ahead(1)) {
    ring.empty[place.slot].wait(place.parity ^ 1);
    const unsigned tile = sums.draw();
    if (sent >= Shape::kInFlight) {
      const Place earlier = place.ahead(Shape::kSlots - Shape::kInFlight);
      ring.full[earlier.slot].wait(earlier.parity ^ 1);
    }
    ++sent;
    MBarrier& full = ring.full[place.slot];
    if (tile >= args.rows * slices) {
      ring.slices[place.slot] = -1;
      full.arrive();
      ++ends;
      continue;
    }
    const int64_t row = tile / slices;
    const int slice = static_cast<int>(tile % slices);
    const int chunks = min(row_chunks - slice * Shape::kChunks, Shape::kChunks);
    const bool goes_on = slice + 1 < args.slices;
    ring.rows[place.slot] = row;
    ring.slices[place.slot] = slice;
    const int first = place.slot * Shape::kTensors;
    const auto x =
        tile_at<Shape, kAccess>(places, first, args.x, args.x_layout, row, slice, chunks);
    const int bytes = x.prepare_copy(goes_on);
    if constexpr (Shape::kTensors == 2) {
      const auto residual = tile_at<Shape, kAccess>(places, first + 1, args.residual,
                                                    args.residual_layout, row, slice, chunks);
      const int more = residual.prepare_copy(goes_on);
      full.arrive_expecting(bytes + more);
      residual.copy(full, more);
    } else {
      full.arrive_expecting(bytes);
    }
    x.copy(full, bytes);
  }
}

// One warp looks for the totals of the tiles in the ring, of the first few at once.
template <typename Shape>
__device__ __forceinline__ void find_totals(const TileSums& sums, TileRing<Shape>& ring) {
  constexpr int kAtOnce = 4;
  const int lane = threadIdx.x % kWarpSize;
  for (RingPlace<Shape::kSlots> first;;) {
    ring.full[first.slot].wait(first.parity);
    if (ring.slices[first.slot] < 0) return;
    const auto place = first.ahead(lane < kAtOnce ? lane : 0);
    double total = -1;
    if (lane < kAtOnce && ring.full[place.slot].passed(place.parity) &&
        ring.slices[place.slot] >= 0) {
      total = sums.total(ring.rows[place.slot]);
    }
    const int found = __ffs(__ballot_sync(0xffffffffu, !TileSums::there(total))) - 1;
    if (lane < found) {
      ring.totals[place.slot] = total;
      ring.ready[place.slot].arrive();
    }
    first = first.ahead(found);
  }
}

// One warp adds up the rows whose last tile is in this ring. Where every block asked for all sums
// of its rows, those few places of the L2 cache were too busy: 87 % of the copy rate, against 95.
template <typename Shape>
__device__ __forceinline__ void add_up_rows(const TileSums& sums, int last_slice,
                                            TileRing<Shape>& ring) {
  const bool leads = threadIdx.x % kWarpSize == 0;
  for (RingPlace<Shape::kSlots> place;; place = place.ahead(1)) {
    ring.full[place.slot].wait(place.parity);
    const int slice = ring.slices[place.slot];
    if (slice < 0) return;
    if (slice == last_slice) {
      const int64_t row = ring.rows[place.slot];
      const double total = sums.add_up<3 - Shape::kParts>(row);
      if (leads) sums.post_total(row, total);
    }
    __syncwarp();
    if (leads) ring.empty[place.slot].arrive();
  }
}

}  // namespace my_ops
