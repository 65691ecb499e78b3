// What the blocks of forward_tiles_kernel.cuh tell each other, in global memory. Device only,
// compute capability 9.0 and later, needs no torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"

namespace my_ops {

// All bits are set at first, which reads as negative; sums of squares are posted without a sign. So
// a value is its own signal that it is there, which spares flags, fences and their latency.
class TileSums {
  static constexpr int kTotalStride = 4;  // doubles: a sector each, as many blocks ask for it

 public:
  // For `parts` sums of a row, at most.
  __host__ __device__ static int64_t doubles(int64_t rows, int64_t parts) {
    return rows * (parts + kTotalStride) + 1;
  }

  __device__ __forceinline__ TileSums(double* memory, int64_t rows, int parts)
      : parts_(parts),
        totals_(memory),
        sums_(memory + rows * kTotalStride),
        drawn_(reinterpret_cast<unsigned*>(sums_ + rows * parts)) {}

  // The next tile that nobody has drawn, from 0 on.
  __device__ __forceinline__ unsigned draw() const { return atomicAdd(drawn_, 1u) + 1; }

  __device__ __forceinline__ void post_sum(int64_t row, int part, double sum) const {
    post(sums_ + row * parts_ + part, sum);
  }
  __device__ __forceinline__ void post_total(int64_t row, double total) const {
    post(totals_ + row * kTotalStride, total);
  }
  __device__ __forceinline__ double total(int64_t row) const {
    return load(totals_ + row * kTotalStride);
  }
  __device__ __forceinline__ static bool there(double value) {
    return __double_as_longlong(value) >= 0;
  }
  // Even a NaN has a sign.
  __device__ __forceinline__ static double unsigned_sum(double sum) {
    return __longlong_as_double(__double_as_longlong(sum) & 0x7FFFFFFFFFFFFFFF);
  }

  // A warp waits for all sums of a row. Their total, in all lanes: first of each `kTogether`
  // neighbours, then of those.
  template <int kTogether>
  __device__ __forceinline__ double add_up(int64_t row) const {
    constexpr int kAtOnce = 4;
    const double* sums = sums_ + row * parts_;
    double total = 0;
    for (int first = threadIdx.x % kWarpSize * kTogether; first < parts_;
         first += kAtOnce * kWarpSize * kTogether) {
      double values[kAtOnce][kTogether];
      const auto index = [&](int i, int j) { return first + i * kWarpSize * kTogether + j; };
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) values[i][j] = index(i, j) < parts_ ? -1.0 : 0.0;
      }
      bool all;
      do {
        all = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (!there(values[i][j])) values[i][j] = load(sums + index(i, j));
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < kTogether; ++j) all = all && there(values[i][j]);
        }
      } while (!all);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        total += kTogether == 2 ? values[i][0] + values[i][kTogether - 1] : values[i][0];
      }
    }
    __syncwarp();
    return lanes_sum<kWarpSize>(total);
  }

 private:
  __device__ __forceinline__ static void post(double* to, double value) {
    asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(to), "d"(unsigned_sum(value))
                 : "memory");
  }
  __device__ __forceinline__ static double load(const double* from) {
    double value;
    asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(value) : "l"(from) : "memory");
    return value;
  }

  int parts_;
  double* totals_;   // [rows], kTotalStride apart
  double* sums_;     // [rows, parts]
  unsigned* drawn_;  // tiles, less one
};

}  // namespace my_ops
