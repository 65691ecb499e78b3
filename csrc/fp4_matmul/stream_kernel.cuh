// y = x * Wq^T + bias for few rows of x: every byte of the weight is read once, at the speed of
// memory. Device only, needs no torch.
//
// The 16 warps of a block share the 16 rows of a tile: a warp has 512 of K for all tiles of its
// block, and keeps that part of x in registers (stream_x.cuh). The weight comes through slots of
// the warp's own (stream_ring.cuh), a lane turns codes into 16-bit pairs times their block scale
// (stream_step.cuh; for one or two rows of x without the scale, stream_columns.cuh) and these are
// mma's operand A, x is B. Nothing waits for another warp until the sums of four tiles are added,
// in the order of K. A longer K takes another pass over these four tiles.
//
// M = 1, 4 and 8, 8192 x 8192, bfloat16 and NVFP4 took 11.9, 12.4 and 12.8 us, reading alone 9.4
// (box panels have these shapes now): decoding takes the time of reading. No faster: x straight
// into registers (14.3 and 15.6 at M = 4 and 8), codes and scales by a table in shared memory (15.2
// for 14.2), K divided between two blocks of a cluster (2 us more), steps of 128 codes, two to four
// ahead (14.1 to 14.4), half as many registers and two kernels on an SM (13.8 to 16.0), x in shared
// memory alone with a barrier for each part of it (17.6 at M = 4, 26 at M = 8).
#pragma once

#include "common/overlap.cuh"
#include "fp4_matmul/stream_columns.cuh"

namespace my_ops {

// Adds up what the warps have of each element of y, and stores it.
__device__ __forceinline__ void store_stream_sums(const StreamArguments& args,
                                                  const uint8_t* shared, int first_tile, int tiles,
                                                  float factor) {
  const int warps = blockDim.x / 32, pitch = args.memory.bytes / 4;
  const auto* const sums = reinterpret_cast<const float*>(shared + args.memory.sums);
  const int M = static_cast<int>(args.out.M);
  // Neighbouring threads take what lies side by side: mma's four elements of a lane, of the lanes
  // that have rows of x, or of the next power of two.
  const int pairs = M <= 2 ? 0 : (M <= 4 ? 1 : 2);  // log2
  for (int i = threadIdx.x; i < tiles << (pairs + 5); i += blockDim.x) {
    const int element = i % 4, pair = i / 4 & ((1 << pairs) - 1);
    const int g = i >> (pairs + 2) & 7, tile = i >> (pairs + 5);
    const int m = pair * 2 + element % 2, row = g + element / 2 * 8;
    const float* const mine = sums + tile * 128 + (g * 4 + pair) * 4 + element;
    float sum = 0.0f;
#pragma unroll 16
    for (int w = 0; w < warps; ++w) sum += mine[w * pitch];
    const int tile_of_all = first_tile + tile * static_cast<int>(gridDim.x);
    const int64_t n = stream_row(args, tile_of_all) + row;
    if (m < M && n >= int64_t{tile_of_all} * kStreamRows) {
      store_element(args.out, m, n, sum * factor + load_bias(args.out, n));
    }
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kMaxWarps * 32, 1)
    fp4_stream_kernel(const StreamArguments args) {
  using Step = StreamStep<Tile>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int M = static_cast<int>(args.out.M);
  const int tiles = static_cast<int>((args.out.N + kStreamRows - 1) / kStreamRows);
  const int first_k = warp * Tile::kSteps * kStreamDepth;
  const int pass_k = warps * Tile::kSteps * kStreamDepth;

  // What a warp copies, and where to
  let_next_kernel_start();
  uint8_t* const memory = shared + warp * args.memory.bytes;
  const int x_step = M * kStreamXBytes;  // of x in shared memory
  const auto copy_x = [&](int step, int pass) {
    StreamX<Tile>::copy(args, memory + args.memory.x + step * x_step,
                        first_k + pass * pass_k + step * kStreamDepth);
  };
  StreamRing<Tile> ring(args, memory, first_k);
  StreamCursor next(blockIdx.x);
  const auto load_next = [&](int step) {
    ring.load(next, step, tiles, pass_k);
    if (step == Tile::kSteps - 1) next.advance(tiles, args.passes);
  };
  // Of the first copies before the wait, so that little is left to do behind it.
  const uint16_t* const x_source = StreamX<Tile>::source(args, first_k);
  const uint32_t x_to = shared_address(memory + args.memory.x);
  const auto copy_first_x = [&](int step) {
    const int k = step * kStreamDepth;
    StreamX<Tile>::copy(args, x_to + step * x_step, x_source + k, first_k + k);
  };
  const auto source = ring.source(next, pass_k);
  if constexpr (!Tile::kRagged) prefetch_first_rows(args);
  wait_for_previous_kernel();

  // The first x and the first weight. One or two rows of x come before it; of more, the second step
  // comes between its two.
  constexpr int kFirstSteps = Tile::kColumns ? Tile::kSteps : 1;
  StreamX<Tile> x[Tile::kSteps];
  const uint8_t* const shared_x = memory + args.memory.x;
  const auto take_x = [&](int step) { x[step].take(shared_x + step * x_step, M); };
  bool lifted = false;
  bool fresh = true;  // later steps of x are still on their way, in front of the weight's
  const auto take_first_x = [&] {
#pragma unroll
    for (int s = 0; s < kFirstSteps; ++s) take_x(s);
    if constexpr (Tile::kColumns) {
      lifted = StreamColumns<Tile>::lift(x, shared_x, Tile::kSteps * M);
    }
    fresh = true;
  };
  // amax comes with x, into the second slot, which is free until x is taken: the compiler put a
  // load of it behind the copies of the weight, and it came 1 us later.
  uint8_t* const shared_amax = memory + Tile::kCodeSlotBytes;
  if (args.amax != nullptr && lane == 0) copy_async<4>(shared_amax, args.amax, 4);
#pragma unroll
  for (int s = 0; s < kFirstSteps; ++s) copy_first_x(s);
  copy_async_commit();
  ring.load(source, 0);
  if (Tile::kSteps == 1) next.advance(tiles, args.passes);
  ring.commit();
  // What all blocks ask for at once takes 2 us to come, and x would come behind it: the second slot
  // waits for x. Otherwise 12.9 us for 11.9 at M = 1, 12.7 for 12.4 at M = 4.
  copy_async_wait<1>();
  __syncwarp();
  const float amax = *reinterpret_cast<const float*>(shared_amax);
  take_first_x();
  __syncwarp();
  static_assert(kStreamSlots == 2);
  if constexpr (Tile::kSteps == 1) {
    load_next(0);
  } else {
    if (kFirstSteps == 1) copy_first_x(1);
    ring.load(source, 1);
    next.advance(tiles, args.passes);
    ring.commit();
  }
  const FragmentScale scale = stream_scale<Tile>(args, amax);

  // The products of a tile with the x of a pass
  const auto multiply_tile = [&](auto columns, typename Step::Sums& sums, int shift) {
    typename Step::Scales scales[Tile::kSteps];
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) {
      copy_async_wait<kStreamSlots - 1>();
      __syncwarp();
      typename Step::Codes codes;
      codes.load(ring.codes(s));
      if (s == 0) {
#pragma unroll
        for (int i = 0; i < Tile::kSteps; ++i) scales[i].load(ring.scales(i), shift);
      }
      __syncwarp();
      load_next(s);
      if (s >= kFirstSteps && fresh) take_x(s);
      if constexpr (columns.value) {
        StreamColumns<Tile>::multiply(sums, codes, scales[s], x[s]);
      } else {
        Step::multiply(sums, codes, scales[s], x[s], scale.scale_factor);
      }
    }
  };

  // Tiles by groups: multiply, add up, store
  auto* const sums = reinterpret_cast<float4*>(memory + args.memory.sums);
  for (int group = blockIdx.x; group < tiles; group += kStreamGroup * gridDim.x) {
    const int group_tiles =
        min(kStreamGroup, (tiles - 1 - group) / static_cast<int>(gridDim.x) + 1);
    for (int pass = 0; pass < args.passes; ++pass) {
      if (args.passes > 1 && (pass > 0 || group > static_cast<int>(blockIdx.x))) {
#pragma unroll
        for (int s = 0; s < Tile::kSteps; ++s) copy_x(s, pass);
        copy_async_commit();
        copy_async_wait<0>();
        __syncwarp();
        take_first_x();
      }
#pragma unroll 1
      for (int tile = 0; tile < group_tiles; ++tile) {
        typename Step::Sums part = {};
        int shift = 0;
        if constexpr (Tile::kRagged) {
          const int first = stream_row(args, group + tile * static_cast<int>(gridDim.x));
          shift = scale_shift((first + lane / 4) * stream_scale_bytes<Tile>(args));
        }
        if (Tile::kColumns && lifted) {
          multiply_tile(std::bool_constant<Tile::kColumns>{}, part, shift);
        } else {
          multiply_tile(std::false_type{}, part, shift);
        }
        fresh = false;
        __syncwarp();  // x is taken before sums take its place
        float4& mine = sums[tile * 32 + lane];
        float4 total = Step::total(part[0]);
        if constexpr (Tile::kColumns) {
          total = StreamColumns<Tile>::finish(total, lifted, scale.scale_factor);
        }
        if (pass > 0) {
          total = {mine.x + total.x, mine.y + total.y, mine.z + total.z, mine.w + total.w};
        }
        mine = total;
      }
    }
    __syncthreads();
    store_stream_sums(args, shared, group, group_tiles, scale.sum_factor);
    if (group + kStreamGroup * static_cast<int>(gridDim.x) < tiles) __syncthreads();
  }
}

}  // namespace my_ops
