// y = x * Wq^T + bias for up to 16 rows of x and a ragged weight (ragged_rows.h), on Hopper. Device
// only, sm_90a, needs no torch.
//
// A block owns tiles of eight rows and all of K, which come to shared memory as they lie in memory
// (stretch_copies.cuh), x first. Its warps divide K evenly: each keeps its part of x in registers
// and meets all tiles with it, one after the other as they come. A lane has neighbouring blocks of
// 16 codes of row lane / 4 of a tile. What is left of K behind the warps' parts is one more step of
// one warp, in the next tile of the next warp.
//
// 9.1 us at M = 16, 5003 x 4112, bfloat16 and NVFP4, 8.1 at M = 8. In an experiment of 9.0 copies
// alone took 5.9, everything else alone 6.5, and two blocks that share what they copy of x 9.5.
// Codes straight from memory into registers took 10.6, the copies of each warp by itself 11.0.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/panel_kernel.cuh"
#include "fp4_matmul/stretch_missing.cuh"

namespace my_ops {

// Adds up what the warps have of each element of y, and stores it: a thread two of a row of x.
template <typename Tile>
__device__ __forceinline__ void store_stretch(const StretchArguments& args,
                                              const StretchMemory& memory,
                                              const StretchTiles& tiles, float factor) {
  const int M = static_cast<int>(args.out.M), warps = args.plan.warps;
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles.count * Tile::kSums / 2; i += blockDim.x) {
    const int tile = i / (Tile::kSums / 2), m = i / 4 % Tile::kTokens;
    const int64_t n = tiles.first_row() + tile * kStretchTileRows + i % 4 * 2;
    if (m >= M || n >= args.out.N) continue;
    float first = 0.0f, second = 0.0f;
    uint32_t from = memory.sums(0, M) + i * 8;
#pragma unroll 8
    for (int w = 0; w < warps; ++w) {
      float part, next;
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(part), "=f"(next) : "r"(from));
      first += part;
      second += next;
      from = memory.sums_behind(from, w, M);
    }
    store_element(args.out, m, n, first * factor + load_bias(args.out, n));
    if (n + 1 < args.out.N) {
      store_element(args.out, m, n + 1, second * factor + load_bias(args.out, n + 1));
    }
  }
}

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(kStretchWarps * 32)
    fp4_stretch_kernel(const __grid_constant__ StretchArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kSteps = kStretchSteps;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int M = static_cast<int>(args.out.M), K = static_cast<int>(args.out.K);
  const int row_codes = K / 2, row_scales = (K + Tile::kScaleBlock - 1) / Tile::kScaleBlock;
  const StretchTiles tiles(args.plan);
  const StretchRows codes(args.codes, tiles.first_row(), args.out.N, row_codes);
  const StretchRows scales(args.scales, tiles.first_row(), args.out.N, row_scales);
  const StretchMemory memory(args, shared_address(shared));
  const int slots = args.plan.slots;
  const auto rows_of = [&](int tile) {
    const int64_t left = args.out.N - tiles.first_row() - tile * kStretchTileRows;
    return static_cast<int>(min(left, int64_t{kStretchTileRows}));
  };
  const auto copy_tile = [&](int tile, int slot) {
    scales.copy(memory.scales(slot), tile, rows_of(tile), memory.full(slot));
    codes.copy(memory.codes(slot), tile, rows_of(tile), memory.full(slot));
    sm90::arrive(memory.full(slot));
  };

  // Start all copies
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    memory.init_barriers();
    // On its way to L2 while the block waits: 0.3 to 0.6 us less.
    constexpr int64_t kPrefetched = 80 * 1024;
    const int64_t rows =
        min(int64_t{tiles.count} * kStretchTileRows, args.out.N - tiles.first_row());
    prefetch_to_l2(codes.begin() - codes.phase(0) % 16,
                   static_cast<int>(min(kPrefetched, rows * row_codes)) / 16 * 16);
  }
  // A scale that is there by chance would seem not to fit. Slots that are used again have scales.
  const int last = tiles.count - 1;
  if (Tile::kMx && rows_of(last) < kStretchTileRows && last < slots) {
    scales.clear_behind(memory.scales(last), last, rows_of(last));
  }
  __syncthreads();
  wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    memory.copy_x(args);
#pragma unroll 1
    for (int tile = 0; tile < min(tiles.count, slots); ++tile) copy_tile(tile, tile);
  }
  __syncwarp();
  const FragmentScale scale = stream_scale<Tile>(args, load_amax(args));

  // x into registers. Step s of a lane is block (s + t) % kSteps of its own, so that lanes meet all
  // banks in x.
  const auto block_of = [&](int s) { return (s + t) % kSteps; };
  const int first_k = warp * kStretchPart, lane_k = first_k + t * kSteps * 16;
  StretchX<Tile> x[kSteps];
  sm90::wait_barrier(memory.x_barrier(), 0);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    x[s].take(memory.x(0) + (lane_k + block_of(s) * 16) * 2, K * 2, M);
  }

  // What the compiler would compute again for every tile, in front of its loads.
  uint32_t selector = 0;  // of scale bytes, from the lane's first on
  uint32_t lane_codes[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    selector |= block_of(s) * 16 / Tile::kScaleBlock << 4 * s;
    lane_codes[s] = opaque(g * row_codes + lane_k / 2 + block_of(s) * 8);
  }
  selector = opaque(selector);
  const uint32_t lane_scales = opaque(g * row_scales + lane_k / Tile::kScaleBlock);
  const uint32_t sums_at = opaque(memory.sums(warp, M));
  const int rest_first = warps * kStretchPart;
  const int rest_steps = (K - rest_first + kStretchStep - 1) / kStretchStep;
  // The step of the rest that is this warp's, below rest_steps; then that of the next tile.
  int rest = warp;
  const auto advance_rest = [&] { rest += rest < rest_steps ? warps - rest_steps : -rest_steps; };
  StretchScales<Tile> lane_pairs(scale.scale_factor);

  // Tiles as they come
  int slot = 0, phase = 0;
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    sm90::wait_barrier(memory.full(slot), phase);
    const uint32_t tile_codes = memory.codes(slot) + codes.phase(tile);
    const uint32_t tile_scales = memory.scales(slot) + scales.phase(tile);
    uint2 words[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      words[s] = load_shared8(tile_codes + lane_codes[s]);
    }
    const uint32_t bytes = __byte_perm(load_window(tile_scales + lane_scales), 0, selector);
    uint32_t pairs[kSteps];
    lane_pairs.pairs(bytes, words, pairs);
    StretchSums<Tile> sums;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) sums.add(words[s], pairs[s], x[s]);

    if (rest < rest_steps) {
      const int k = rest_first + rest * kStretchStep + t * 16;
      const int within = min(k, K - 16);  // behind K what is there meets zeros of x
      StretchX<Tile> rest_x;
      rest_x.take(memory.x(0) + within * 2, K * 2, M);
      if (k >= K) rest_x = {};
      const uint2 word[1] = {load_shared8(tile_codes + g * row_codes + within / 2)};
      const uint32_t at = tile_scales + g * row_scales + within / Tile::kScaleBlock;
      uint32_t pair[1];
      lane_pairs.pairs(load_window(at) & 0xFF, word, pair);
      sums.add(word[0], pair[0], rest_x);
    }
    advance_rest();
    if (tiles.count > slots) {
      __syncwarp();
      if (lane == 0) {
        sm90::arrive(memory.empty(slot));
        if (tile % warps == warp && tile + slots < tiles.count) {
          sm90::wait_barrier(memory.empty(slot), phase);
          copy_tile(tile + slots, slot);
        }
      }
      __syncwarp();
    }
    if (tile == 0 && args.plan.sums_take_x) __syncthreads();  // every warp has its own of x
    sums.put(sums_at + tile * Tile::kSums * 4);
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }

  // What did not fit, then the sums of all warps
  if (!lane_pairs.all_fit()) {
    __syncwarp();
    rest = warp;
#pragma unroll 1
    for (int tile = 0; tile < tiles.count; ++tile) {
      add_missing_of_tile<Tile>(args, sums_at + tile * Tile::kSums * 4,
                                tiles.first_row() + tile * kStretchTileRows, first_k,
                                rest < rest_steps ? rest_first + rest * kStretchStep : -1);
      advance_rest();
    }
  }
  __syncthreads();
  store_stretch<Tile>(args, memory, tiles, scale.sum_factor);
#endif
}

}  // namespace my_ops
