// Sums over a row whose bits do not depend on where the row begins. Device only, needs no torch.
//
// Chunk c of a row with `begin` elements before its first one holds columns c * N - begin and on,
// so which elements share a chunk, or a lane, depends on `begin`. But the columns that are
// congruent modulo the elements of all lanes always meet in one place: they are a class. A lane
// adds up each of its classes alone, in the order of columns. Then come sums of two classes that
// are half of all classes apart, then a quarter, and so on to neighbours: wherever the count of
// classes begins, the same ones meet at each step.
#pragma once

#include "common/reduce.cuh"
#include "rmsnorm/backward_math.cuh"

namespace my_ops {

template <typename x_t, typename acc_t, int N, typename sum_t>
__device__ __forceinline__ void add_to_classes(const Pack& x_pack, const Pack& grad_pack,
                                               const acc_t (&weight)[N], sum_t (&sums)[2 * N]) {
  acc_t x[N];
  acc_t grad[N];
  widen_pack<x_t>(x_pack, x);
  widen_pack<x_t>(grad_pack, grad);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const sum_t value = x[j];
    sums[2 * j] += value * value;
    sums[2 * j + 1] += grad[j] * weight[j] * value;
  }
}

// The sum of what lanes up to `kDistance` apart hold at the same place. At every step a lane keeps
// every other value and its partner the rest, until one is left.
template <int kDistance, typename T, int kCount>
__device__ __forceinline__ double sum_and_scatter(const T (&values)[kCount]) {
  if constexpr (kCount == 1) {
    return lanes_sum<2 * kDistance>(static_cast<double>(values[0]));
  } else if constexpr (kDistance == 0) {
    double sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = values[i];
#pragma unroll
    for (int apart = kCount / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int i = 0; i < apart; ++i) sums[i] += sums[i + apart];
    }
    return sums[0];
  } else {
    const bool upper = threadIdx.x & kDistance;
    T kept[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const T sent = upper ? values[2 * i] : values[2 * i + 1];
      kept[i] = (upper ? values[2 * i + 1] : values[2 * i]) +
                __shfl_xor_sync(0xffffffffu, sent, kDistance);
    }
    return sum_and_scatter<kDistance / 2>(kept);
  }
}

// Both sums over groups of `kWidth` lanes, as lanes_sum_halves() leaves them.
template <int kWidth, typename T, int kCount>
__device__ __forceinline__ double classes_sum_halves(const T (&sums)[kCount]) {
  double sum = sum_and_scatter<kWidth / 2>(sums);
  // Neighbouring classes went to the lanes furthest apart.
  constexpr int kScattered = kWidth < kCount ? kWidth : kCount;
#pragma unroll
  for (int distance = kWidth / kScattered; distance < kWidth / 2; distance *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  return sum;
}

// The sums of x^2 and of a * x over a row of `kWidth` lanes.
template <typename x_t, int kWidth, Rows kRows>
class RowSums {
  static constexpr int N = kChunkElements<x_t>;
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;

 public:
  template <typename acc_t>
  __device__ __forceinline__ void add(const Pack& x, const Pack& grad, const acc_t (&weight)[N]) {
    if constexpr (kHasEdges<kRows>) {
      add_to_classes<x_t>(x, grad, weight, classes_);
    } else {
      add_products<x_t>(x, grad, weight, sums_);
    }
  }
  // One in each half of the lanes.
  __device__ __forceinline__ double halves() const {
    if constexpr (kHasEdges<kRows>) return classes_sum_halves<kWidth>(classes_);
    return lanes_sum_halves<kWidth>(sums_);
  }

 private:
  double sums_[2] = {0, 0};
  chunk_sum_t classes_[2 * N] = {};  // both sums of each of a lane's classes in turn
};

}  // namespace my_ops
