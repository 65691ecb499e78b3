// y = x * Wq^T + bias for few rows of x: every byte of the weight is read once, at the speed of
// memory. Device only, needs no torch.
//
// A block is 24 warps in teams. A team owns 16 rows of the weight at a time, its warps divide K
// among them. x lies in shared memory. A lane loads 32 codes of two rows per step of 128 along K,
// one step ahead, looks them up as 16-bit pairs (stream_step.cuh) and multiplies by the block
// scale; the pairs are mma's operand A, x is B. A step's sums start at zero and join the total by
// rounded additions; the warps' totals are added in order. Where x [M, K] is too large for shared
// memory the two blocks of a cluster take half of K each.
//
// 17.6 us at M = 1, 8192 x 8192, for 9.7 of reading alone. No faster: loads two to six steps ahead
// (18.8 to 20.9), x in registers and rings of asynchronous copies (16.7 to 19), codes by the copy
// engine (28), arithmetic in place of the table (17.4).
#pragma once

#include "fp4_matmul/stream_step.cuh"
#include "fp4_matmul/stream_x.cuh"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ float load_of_rank(const float* shared, int rank) {
  float value = 0.0f;
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(shared)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}

__device__ __forceinline__ void team_barrier(int team, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}

__device__ __forceinline__ uint4 load_codes16(const uint8_t* codes) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(codes));
  return v;
}

template <typename Tile>
__global__ void __launch_bounds__(kStreamWarps * 32, 1)
    fp4_stream_kernel(const StreamArguments args) {
  using scalar_t = typename Tile::scalar_t;
  constexpr int kBlock = fp4_block_size(Tile::kFormat);

  extern __shared__ __align__(16) uint8_t shared[];
  const int M = static_cast<int>(args.out.M);
  const int K = static_cast<int>(args.out.K);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int team = warp / args.team_warps, member = warp % args.team_warps;
  const int team_threads = args.team_warps * 32;
  const int rank = blockIdx.x % args.splits;
  const int steps = args.steps;
  const int first_k = rank * steps * kStreamDepth;
  // Lanes of rows that x has not read the last one's elements; nothing of theirs is stored.
  uint4* const staged_x = reinterpret_cast<uint4*>(shared + kTableBytes);
  float* const all_sums = reinterpret_cast<float*>(staged_x + M * steps * (kStreamDepth / 8));

  const int teams_of_block = kStreamWarps / args.team_warps;
  const int teams = gridDim.x / args.splits * teams_of_block;
  const int first_tile = blockIdx.x / args.splits * teams_of_block + team;
  const int tiles = static_cast<int>((args.out.N + kStreamRows - 1) / kStreamRows);
  // The last tile overlaps the one before it where N is no multiple of 16; both write the same.
  const auto tile_n = [&](int tile) {
    return min(tile * kStreamRows, static_cast<int>(args.out.N) - kStreamRows);
  };

  // This warp's steps of every tile, and where its lane reads: row lane / 4 and the one 8 below,
  // 32 codes from lane % 4 * 32.
  const int first_step = steps * member / args.team_warps;
  const int end_step = steps * (member + 1) / args.team_warps;
  const int lane_k = first_k + lane % 4 * 32;
  const int code_row_bytes = K / 2, scale_row_bytes = K / kBlock;

  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  // The words at the cursor, which the call moves on.
  const auto load = [&](int tile, int step) {
    if (step == first_step) {
      const int64_t row = tile_n(tile) + lane / 4;
      const int k = lane_k + step * kStreamDepth;
      codes = args.codes + row * code_row_bytes + k / 2;
      scales = args.scales + row * scale_row_bytes + k / kBlock;
    }
    StreamWords<Tile> words = {};
    if (tile < tiles && lane_k + step * kStreamDepth < K) {
      words.low = load_codes16(codes);
      words.high = load_codes16(codes + 8 * code_row_bytes);
      if constexpr (Tile::kFormat == Fp4Format::nvfp4) {
        words.scale_low = __ldg(reinterpret_cast<const uint16_t*>(scales));
        words.scale_high = __ldg(reinterpret_cast<const uint16_t*>(scales + 8 * scale_row_bytes));
      } else {
        words.scale_low = __ldg(scales);
        words.scale_high = __ldg(scales + 8 * scale_row_bytes);
      }
    }
    codes += kStreamDepth / 2;
    scales += kStreamDepth / kBlock;
    return words;
  };

  StreamWords<Tile> words = load(first_tile, first_step);
  stage_x<scalar_t>(staged_x, args, first_k, steps);
  fill_table<scalar_t>(reinterpret_cast<uint32_t*>(shared));
  const FragmentScale scale = stream_scale<scalar_t, Tile::kFormat>(args.amax);
  __syncthreads();

  typename StreamStep<Tile>::Addresses at{
      shared_address(staged_x) + (min(lane / 4, M - 1) * 4 + lane % 4) * 16,
      shared_address(shared) + lane * 4, static_cast<uint32_t>(M) * 64};
  const uint32_t first_x = at.x;
  int buffer = 0;
  for (int tile = first_tile; tile - team < tiles; tile += teams) {
    typename StreamStep<Tile>::Sums sums = {};
#pragma unroll 2
    for (int step = first_step; step < end_step; ++step) {
      const bool last = step + 1 == end_step;
      const StreamWords<Tile> next = load(last ? tile + teams : tile, last ? first_step : step + 1);
      at.x = first_x + step * at.word_bytes * 4;
      StreamStep<Tile>::multiply(sums, words, at, scale.scale_factor);
      words = next;
    }

    float* const team_sums =
        all_sums + (buffer * kStreamWarps + team * args.team_warps) * kStreamOutputs;
    float4* const mine = reinterpret_cast<float4*>(team_sums + member * kStreamOutputs) + lane;
    *mine = {sums[0], sums[1], sums[2], sums[3]};
    team_barrier(team, team_threads);
    // Output i is element i % 4 of lane i / 4's sums.
    const auto store = [&](int output, float sum) {
      const int out_lane = output / 4;
      const int token = out_lane % 4 * 2 + output % 2;
      const int64_t n = tile_n(tile) + out_lane / 4 + output % 4 / 2 * 8;
      if (token < M && tile < tiles) {
        store_element(args.out, token, n, sum * scale.sum_factor + load_bias(args.out, n));
      }
    };
    for (int i = member * 32 + lane; i < kStreamOutputs; i += team_threads) {
      float sum = 0.0f;
#pragma unroll 8
      for (int w = 0; w < args.team_warps; ++w) sum += team_sums[w * kStreamOutputs + i];
      if (args.splits == 1) {
        store(i, sum);
      } else {
        team_sums[i] = sum;
      }
    }
    if (args.splits > 1) {
      cluster_barrier();
      const int half = kStreamOutputs / 2;
      for (int i = rank * half + member * 32 + lane; i < (rank + 1) * half; i += team_threads) {
        store(i, load_of_rank(team_sums + i, 0) + load_of_rank(team_sums + i, 1));
      }
      cluster_barrier();
    }
    buffer ^= 1;
  }
}

}  // namespace my_ops
