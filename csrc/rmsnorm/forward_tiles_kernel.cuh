// The forward kernel for the widest rows, by the copy engine. Device only, compute capability 9.0
// and later, needs no torch.
//
// A row is cut into tiles. One block on each multiprocessor draws tile after tile, row by row, into
// a ring in shared memory: there a tile is added up, waits for the sums of its row's other tiles,
// which go through global memory, and is normalized. A multiprocessor that gets more of the
// memory's speed draws more tiles; an equal share for each comes to 94 to 97 % of the copy rate
// even without any sums, and clusters, which need 16 of them at once, to 87.
//
// A block waits for nothing but tiles that were drawn, and draws one only into an empty slot. So
// where all blocks run (a cooperative launch) and their rings together hold more than a row, the
// first row that is not complete always becomes so.
#pragma once

#include <cstdint>

#include "rmsnorm/forward_math.cuh"
#include "rmsnorm/forward_tiles_ring.cuh"

namespace my_ops {

// Reduce, one warp: the sum of squares of one part of a tile. What was added takes x's place.
template <Access kAccess, typename x_t>
__device__ __forceinline__ double tile_part_sum(const StagedSlice<kAccess, x_t>& x,
                                                const StagedSlice<kAccess, x_t>* residual,
                                                x_t* sum_out, int begin, int end) {
  constexpr int N = kChunkElements<x_t>;
  constexpr int kSums = 4;
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  double sums[kSums] = {};
  const auto add_to = [&](double& sum, int chunk) {
    Vec<x_t, N> value = x.get(chunk);
    if (residual != nullptr) {
      add_chunk(value, residual->get(chunk));
      store(sum_out + chunk * N, value);
      x.set(chunk, value);
    }
    sum += add_squares(chunk_sum_t(0), value);
  };
  int chunk = begin + threadIdx.x % kWarpSize;
#pragma unroll 2
  for (; chunk + (kSums - 1) * kWarpSize < end; chunk += kSums * kWarpSize) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) add_to(sums[i], chunk + i * kWarpSize);
  }
#pragma unroll 1
  for (; chunk < end; chunk += kWarpSize) add_to(sums[0], chunk);
  __syncwarp();
  return lanes_sum<kWarpSize>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename x_t, typename w_t, Access kAccess, bool kAdd>
__global__ void __launch_bounds__(TileShape<kAccess, kAdd>::kThreads, 1)
    rmsnorm_forward_tiles_kernel(const __grid_constant__ ForwardArgs<x_t, w_t> args) {
#if __CUDA_ARCH__ >= 900
  using Shape = TileShape<kAccess, kAdd>;
  using Place = RingPlace<Shape::kSlots>;
  constexpr int N = kChunkElements<x_t>;
  extern __shared__ __align__(128) unsigned char tile_bytes[];
  __shared__ TileRing<Shape> ring;

  const int row_chunks = static_cast<int>(args.H / N);
  const TileSums sums(args.partial_sums, args.rows, args.slices);
  if (threadIdx.x == 0) {
    ring.init(kAdd ? 1 + Shape::kParts : 1, Shape::kStoreWarps + 1);
  }
  __syncthreads();

  // What the slot at a place holds.
  const auto chunks_of = [&](int slice) {
    return min(row_chunks - slice * Shape::kChunks, Shape::kChunks);
  };
  const auto x_at = [&](const Place& place, int64_t row, int slice) {
    return tile_at<Shape, kAccess>(tile_bytes, place.slot * Shape::kTensors, args.x, args.x_layout,
                                   row, slice, chunks_of(slice));
  };
  const auto residual_at = [&](const Place& place, int64_t row, int slice) {
    return tile_at<Shape, kAccess>(tile_bytes, place.slot * Shape::kTensors + 1, args.residual,
                                   args.residual_layout, row, slice, chunks_of(slice));
  };
  const auto first_column = [](int slice) {
    return static_cast<int64_t>(slice) * Shape::kChunks * N;
  };

  // What each warp does: load, find totals, add up rows, reduce, or compute and store
  const int warp = threadIdx.x / kWarpSize;
  const bool leads = threadIdx.x % kWarpSize == 0;
  if (warp == 0) {
    if (leads) fill_tiles<Shape, kAccess>(args, sums, tile_bytes, ring, row_chunks);
  } else if (warp == 1) {
    find_totals(sums, ring);
  } else if (warp == 2) {
    add_up_rows(sums, args.slices - 1, ring);
  } else if (warp < Shape::kOtherWarps + Shape::kSumWarps) {
    // Reduce: one part of every kSumTiles-th tile
    const int part = (warp - Shape::kOtherWarps) % Shape::kParts;
    Place place = Place().ahead((warp - Shape::kOtherWarps) / Shape::kParts);
    for (;; place = place.ahead(Shape::kSumTiles)) {
      ring.full[place.slot].wait(place.parity);
      const int slice = ring.slices[place.slot];
      if (slice < 0) break;
      const int64_t row = ring.rows[place.slot];
      const int begin = part * kTilePartChunks;
      const int end = min(chunks_of(slice), begin + kTilePartChunks);
      const auto x = x_at(place, row, slice);
      double sum;
      if constexpr (kAdd) {
        const auto residual = residual_at(place, row, slice);
        x_t* const sum_out = args.sum + row * args.H + first_column(slice);
        sum = tile_part_sum(x, &residual, sum_out, begin, end);
        sm90::fence_for_copies();
        __syncwarp();
      } else {
        sum = tile_part_sum<kAccess, x_t>(x, nullptr, nullptr, begin, end);
      }
      if (leads) {
        sum = ring.add_part(place.slot, sum);
        if (TileSums::there(sum)) sums.post_sum(row, slice, sum);
        if constexpr (kAdd) ring.ready[place.slot].arrive();
      }
    }
  } else {
    // Compute and store: one tile by all of these warps, so that its stores come together. (Where
    // two groups of warps each had a tile it was 94 % of the copy rate.) The first of the weight is
    // there before the total is.
    constexpr int kThreads = Shape::kStoreWarps * kWarpSize;
    constexpr int kVectors = Shape::kChunks / kThreads;
    constexpr int kAhead = sizeof(w_t) > sizeof(x_t) ? 4 : kVectors;
    constexpr int kAtOnce = 4;
    static_assert(kVectors % kAhead == 0 && kAhead % kAtOnce == 0);
    const int thread = threadIdx.x - (Shape::kOtherWarps + Shape::kSumWarps) * kWarpSize;
    with_loop<kAccess>(args, [&](auto loop) {
      constexpr Loop kLoop = decltype(loop)::value;
      for (Place place;; place = place.ahead(1)) {
        ring.full[place.slot].wait(place.parity);
        const int slice = ring.slices[place.slot];
        if (slice < 0) break;
        const int64_t row = ring.rows[place.slot];
        const int chunks = chunks_of(slice);
        const auto x = x_at(place, row, slice);
        Vec<w_t, N> weight[kAhead];
        const auto load_weight = [&](int batch) {
          const int chunk = batch * kThreads + thread;
          load_run<kAccess>(weight, args.weight + first_column(slice) + chunk * N,
                            args.weight == nullptr ? 0 : chunks - chunk, kThreads, 1);
        };
        load_weight(0);
        ring.ready[place.slot].wait(place.parity);
        const Normalizer<x_t, w_t> normalizer(args, ring.totals[place.slot]);
        const Output<x_t, kLoop> y(args, row * args.H + first_column(slice));
#pragma unroll
        for (int batch = 0; batch < kVectors; batch += kAtOnce) {
          if (batch > 0 && batch % kAhead == 0) load_weight(batch);
          Vec<x_t, N> values[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int chunk = (batch + i) * kThreads + thread;
            if (chunk < chunks) values[i] = x.get(chunk);
          }
          if (batch + kAtOnce == kVectors) {
            __syncwarp();
            if (leads) ring.empty[place.slot].arrive();
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int chunk = (batch + i) * kThreads + thread;
            if (chunk >= chunks) continue;
            const auto result =
                normalizer.template y<kLoop>(values[i], weight[(batch + i) % kAhead]);
            y.store(chunk * N, result);
          }
        }
      }
    });
  }
#endif
}

}  // namespace my_ops
