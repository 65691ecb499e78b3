// How x lies in the gemv kernel's shared memory. Device only, needs no torch.
#pragma once

#include "fp4_matmul/gemv_block.cuh"
#include "fp4_matmul/gemv_step.cuh"

namespace my_ops {

// Of four chunks of 16 bytes places are swapped, so that the lanes that take them meet no bank
// twice.
__device__ __forceinline__ int gemv_x_place(int chunk) { return (chunk ^ (chunk >> 3 & 3)) * 16; }

// Brings x into the order of the codes and lifts it (stream_columns.cuh), with zeros behind it.
// Returns whether it could be lifted, behind a barrier.
template <typename Tile>
__device__ __forceinline__ bool order_gemv_x(const GemvArguments& args, uint8_t* x, int x_bytes) {
  using scalar_t = typename Tile::scalar_t;
  constexpr int kThreads = kGemvWarps * 32;
  const int chunks = static_cast<int>(args.out.K) / 8;
  bool fits = true;
#pragma unroll 1
  for (int chunk = threadIdx.x; chunk < x_bytes / 16; chunk += kThreads) {
    uint4 v = {0, 0, 0, 0};
    if (chunk < chunks) v = pair_order(load_shared16(x + chunk * 16));
    if constexpr (!GemvStep<Tile>::kHalf) {
      fits = fits & can_lift(v.x) & can_lift(v.y) & can_lift(v.z) & can_lift(v.w);
      v = {multiply_pairs(scalar_t{}, v.x, kColumnLift),
           multiply_pairs(scalar_t{}, v.y, kColumnLift),
           multiply_pairs(scalar_t{}, v.z, kColumnLift),
           multiply_pairs(scalar_t{}, v.w, kColumnLift)};
    }
    __syncwarp();
    *reinterpret_cast<uint4*>(x + gemv_x_place(chunk)) = v;
  }
  const bool lifted = __syncthreads_and(fits);
  if (!lifted) {
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
      *reinterpret_cast<uint4*>(x + gemv_x_place(chunk)) =
          pair_order(static_cast<const uint4*>(args.x)[chunk]);
    }
    __syncthreads();
  }
  return lifted;
}

}  // namespace my_ops
