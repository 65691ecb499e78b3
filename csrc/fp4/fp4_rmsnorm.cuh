// Device: RMSNorm whose result leaves as FP4 and never goes to memory itself: 2.56 bytes an element
// of bfloat16 instead of the 6.56 of two operators. Needs no torch header.
#pragma once

#include "common/reduce.cuh"
#include "fp4/fp4_encode.cuh"
#include "rmsnorm/chunk.cuh"

namespace my_ops {

constexpr int kRmsnormFp4Vectors = 8;    // chunks of a row that a thread holds, as rmsnorm's
constexpr int kRmsnormFp4Threads = 256;  // at most
constexpr int kRmsnormFp4Blocks = 2;     // of that many threads an SM: 128 registers a thread

// Narrower rows leave most of a warp's registers empty: with 128 chunks the kernel takes 609 us
// where the two operators take 425, with 256 chunks 317 (2^28 bfloat16 on an H200).
constexpr int kRmsnormFp4MinChunks = 32 * kRmsnormFp4Vectors;
constexpr int kRmsnormFp4MaxChunks = kRmsnormFp4Threads * kRmsnormFp4Vectors;

template <typename x_t, typename w_t>
struct RmsnormFp4Args {
  const x_t* x;       // [rows, H], row_stride
  const w_t* weight;  // [H]; null: ones
  uint8_t* packed;    // [rows, H / 2]
  uint8_t* scale;     // [rows, H / kBlock]
  const float* amax;  // of the tensor; null: one level, or MXFP4
  int64_t rows;
  int64_t H;  // whole FP4 blocks
  int64_t row_stride;
  double eps;
  double weight_offset;
  Fp4ScaleMode scale_mode;
};

// kLanes neighbouring lanes share kLanes blocks, of which each holds a chunk. Lane i hears the
// magnitudes of block i from the others, so that every scale is computed once.
template <int kLanes>
__device__ __forceinline__ float amax_of_own_block(float (&amax)[kLanes]) {
#pragma unroll
  for (int half = kLanes / 2; half >= 1; half /= 2) {
    const bool upper = threadIdx.x & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float send = upper ? amax[i] : amax[i + half];
      const float keep = upper ? amax[i + half] : amax[i];
      amax[i] = larger</*kKeepNaN=*/true>(keep, __shfl_xor_sync(~0u, send, half));
    }
  }
  return amax[0];
}

// The arithmetic of rmsnorm's Normalizer, step by step, so that the bits of y are those of rmsnorm.
template <typename x_t>
__device__ __forceinline__ void normalize_chunk(Vec<x_t, kChunkElements<x_t>>& x,
                                                const float (&w)[kChunkElements<x_t>], float rstd,
                                                float rstd_rest) {
  constexpr int N = kChunkElements<x_t>;
  float values[N];
  widen_chunk(x, values);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float normalized = values[j] * rstd;
    if constexpr (sizeof(x_t) > 2) {
      const float error = fma(values[j], rstd_rest, fma(values[j], rstd, -normalized));
      values[j] = fma(normalized, w[j], error * w[j]);
    } else {
      values[j] = normalized * w[j];
    }
  }
  narrow_chunk(values, x);
}

// A thread block walks over rows and keeps the weight, with its offset, in registers. The sums of a
// chunk (16 bytes of x) are those of rmsnorm_forward_kernel; they are added in float64 in another
// order, which a rstd of float32 shows once in some 10^8 rows.
template <Fp4Format kFormat, typename x_t, typename w_t>
__global__ void __launch_bounds__(kRmsnormFp4Threads, kRmsnormFp4Blocks)
    rmsnorm_fp4_quantize_kernel(const RmsnormFp4Args<x_t, w_t> args) {
  constexpr int N = kChunkElements<x_t>;
  constexpr int kBlock = fp4_block_size(kFormat), kLanes = kBlock / N;
  constexpr int V = kRmsnormFp4Vectors;
  static_assert(V % kLanes == 0, "a thread finds one scale for every kLanes chunks");
  const int chunks = static_cast<int>(args.H / N);
  const int lane = threadIdx.x % kLanes;
  __shared__ SumScratch<double, 1> scratch[2];

  float w[V][N];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int chunk = threadIdx.x + v * blockDim.x;
    Vec<w_t, N> stored = {};
    if (args.weight != nullptr && chunk < chunks) {
      stored = load_chunk<true, N>(args.weight, int64_t{chunk} * N, args.H);
    }
    widen_chunk(stored, w[v]);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      w[v][j] = args.weight == nullptr ? 1.0f : w[v][j] + static_cast<float>(args.weight_offset);
    }
  }
  Nvfp4TensorScale tensor;
  if (kFormat == Fp4Format::nvfp4 && args.amax) tensor = nvfp4_tensor_scale(*args.amax);

  const double inverse_H = 1.0 / static_cast<double>(args.H);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    // Load
    Vec<x_t, N> x[V] = {};
    const x_t* x_row = args.x + row * args.row_stride;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int chunk = threadIdx.x + v * blockDim.x;
      if (chunk < chunks) x[v] = load_chunk<true, N>(x_row, int64_t{chunk} * N, args.H);
    }

    // Reduce
    double sums[1] = {0};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
      float values[N];
      widen_chunk(x[v], values);
      chunk_sum_t chunk_sum = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        chunk_sum += static_cast<chunk_sum_t>(values[j]) * static_cast<chunk_sum_t>(values[j]);
      }
      sums[0] += chunk_sum;
    }
    blocks_sum(sums, scratch[turn], 1);
    const double rstd_exact = rsqrt(sums[0] * inverse_H + args.eps);
    const float rstd = static_cast<float>(rstd_exact);
    const float rstd_rest = static_cast<float>(rstd_exact - rstd);

    // Compute and store, kLanes chunks at a time.
    uint8_t* packed_row = args.packed + row * (args.H / 2);
    uint8_t* scale_row = args.scale + row * (args.H / kBlock);
#pragma unroll
    for (int v = 0; v < V; v += kLanes) {
      float amax[kLanes];
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        keep_packed(x[v + i]);
        normalize_chunk(x[v + i], w[v + i], rstd, rstd_rest);
        uint32_t words[4];
        memcpy(words, &x[v + i], sizeof words);
        amax[i] = largest_magnitude<x_t, /*kKeepNaN=*/true>(words);
      }
      const float block_amax = amax_of_own_block(amax);
      const auto [byte, own_factor] =
          fp4_block_factor<kFormat>(block_amax, tensor, args.scale_mode);
      const int own_chunk = threadIdx.x - lane + (v + lane) * blockDim.x;
      if (own_chunk < chunks) scale_row[own_chunk / kLanes] = byte;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const int chunk = threadIdx.x + (v + i) * blockDim.x;
        const float factor = __shfl_sync(~0u, own_factor, i, kLanes);
        Fp4Eight<x_t> eight = {};
        memcpy(eight.words, &x[v + i], sizeof x[v + i]);
        const uint32_t codes = fp4_encode8<kFormat>(eight, factor);
        if (chunk < chunks) {
          if constexpr (N == 8) {
            reinterpret_cast<uint32_t*>(packed_row)[chunk] = codes;
          } else {
            reinterpret_cast<uint16_t*>(packed_row)[chunk] = static_cast<uint16_t>(codes);
          }
        }
      }
    }
  }
}

}  // namespace my_ops
