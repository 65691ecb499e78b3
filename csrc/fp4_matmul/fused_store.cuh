// How sums in the fused and the wide kernel's registers become results in memory. Device only,
// sm_90a, needs no torch.
#pragma once

#include "fp4_matmul/fused_step.cuh"
#include "fp4_matmul/quad.cuh"

namespace my_ops {

// What the global scales of the weight and of x come from.
struct Amaxes {
  float weight = 0.0f, x = 0.0f;

  __device__ __forceinline__ void load(const FusedArguments& args) {
    if (args.amax != nullptr) weight = *args.amax;
    if (args.x_amax != nullptr) x = *args.x_amax;
  }
};

// What turns sums into results: two factors, as the product of two global scales may leave the
// range of a float where the result does not.
struct ResultScale {
  float first = 1.0f, second = 1.0f;

  __device__ __forceinline__ float operator()(float sum) const { return sum * first * second; }
};

__device__ __forceinline__ ResultScale result_scale(float weight, float x) {
  const double both = static_cast<double>(weight) * x;
  if (both > 0x1p120) return {0x1p100f, static_cast<float>(both * 0x1p-100)};
  if (both < 0x1p-120 && both > 0) return {0x1p-100f, static_cast<float>(both * 0x1p100)};
  return {static_cast<float>(both), 1.0f};
}

// An 8 x 8 matrix of 16-bit elements, a row in four lanes, transposed.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The rows n and n + 8 of the weight that a lane has sums of, n = first_n + lane / 4, and how these
// become results.
struct StripWriter {
  const ProductOutput& out;
  ResultScale scale;
  int64_t n;
  float bias_low, bias_high;

  __device__ __forceinline__ StripWriter(const ProductOutput& out, const ResultScale& scale,
                                         int first_n)
      : out(out), scale(scale), n(first_n + threadIdx.x % 32 / 4) {
    bias_low = n < out.N ? load_bias(out, n) : 0.0f;
    bias_high = n + 8 < out.N ? load_bias(out, n + 8) : 0.0f;
  }

  // Whether a row is stored by this warp. The last warp's 16 rows may overlap those in front, from
  // the last multiple of 16 on they are its own (warp_row): where scales do not fit 16 bits, both
  // may add in another order.
  __device__ __forceinline__ bool owns(int64_t row) const {
    const int64_t first = n - threadIdx.x % 32 / 4;
    return row >= (first + 15) / 16 * 16 && row < out.N;
  }

  // Tokens first_token + 2 * (lane % 4) and the next: sums x, y of row n and z, w of n + 8.
  __device__ __forceinline__ void store(int64_t first_token, float4 sum) const {
    const float results[4] = {scale(sum.x) + bias_low, scale(sum.y) + bias_low,
                              scale(sum.z) + bias_high, scale(sum.w) + bias_high};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = first_token + threadIdx.x % 4 * 2 + i % 2;
      if (token < out.M && owns(n + i / 2 * 8)) {
        store_element(out, token, n + i / 2 * 8, results[i]);
      }
    }
  }
};

// Two strips of 8 rows of x that begin `distance` rows from each other, sums as in
// StripWriter::store, as vectors of 8 results along N. In a quad of lanes, lane t stores half t % 2
// of strip t / 2.
template <typename result_t>
__device__ __forceinline__ void store_vectors(const StripWriter& writer, int64_t first_m,
                                              int distance, const float4 (&sums)[2]) {
  const auto pair = [&](float low, float high, float bias) {
    return transpose_matrix(
        pack_pair(result_t{}, writer.scale(low) + bias, writer.scale(high) + bias));
  };
  const uint4 vector = transpose_in_quad(
      {pair(sums[0].x, sums[0].y, writer.bias_low), pair(sums[0].z, sums[0].w, writer.bias_high),
       pair(sums[1].x, sums[1].y, writer.bias_low), pair(sums[1].z, sums[1].w, writer.bias_high)});
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int64_t m = first_m + t / 2 * distance + lane / 4;
  const int64_t n = writer.n + t % 2 * 8 - lane / 4;
  const ProductOutput& out = writer.out;
  if (m >= out.M || !writer.owns(n)) return;
  auto* const data = static_cast<uint16_t*>(out.data) + m * out.row_stride + n * out.col_stride;
  *reinterpret_cast<uint4*>(data) = vector;
}

// Calls `body` with a value of the results' 16-bit type.
template <typename Body>
__device__ __forceinline__ void with_pair_type(const ProductOutput& out, Body&& body) {
  if (out.type == DenseType::float16) {
    body(__half{});
  } else {
    body(__nv_bfloat16{});
  }
}

// Stores kStrips strips that begin kDistance rows of x from each other, as vectors where the
// results allow it: to store pairs took 4 % of the time of a tile of 256 rows at K = 8192.
template <int kStrips, int kDistance, typename Strip>
__device__ __forceinline__ void store_all(const FusedArguments& args, const StripWriter& writer,
                                          int64_t first_token, const Strip& strip) {
  if (args.vectors) {
    with_pair_type(args.out, [&](auto type) {
#pragma unroll
      for (int j = 0; j < kStrips; j += 2) {
        const float4 both[] = {strip(j), strip(j + 1)};
        store_vectors<decltype(type)>(writer, first_token + j * kDistance, kDistance, both);
      }
    });
  } else {
#pragma unroll
    for (int j = 0; j < kStrips; ++j) writer.store(first_token + j * kDistance, strip(j));
  }
}

}  // namespace my_ops
