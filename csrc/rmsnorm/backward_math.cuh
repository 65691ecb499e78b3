// The arithmetic of rmsnorm's backward on one chunk. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/pack.cuh"

namespace my_ops {

// What the elements of a row have in common.
template <typename acc_t>
struct RowScale {
  acc_t rstd;
  acc_t mean;  // of a * x * rstd
};

// From the sums of x^2 and of a * x over a row.
template <typename acc_t>
__device__ __forceinline__ RowScale<acc_t> row_scale(double squares, double products,
                                                     double inverse_H, double eps) {
  const double rstd = rsqrt(squares * inverse_H + eps);
  return {static_cast<acc_t>(rstd), static_cast<acc_t>(products * inverse_H * rstd)};
}

// Adds a chunk's x^2 and a * x to a row's sums.
template <typename x_t, typename acc_t, int N>
__device__ __forceinline__ void add_products(const Pack& x_pack, const Pack& grad_pack,
                                             const acc_t (&weight)[N], double (&sums)[2]) {
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  acc_t x[N];
  acc_t grad[N];
  widen_pack<x_t>(x_pack, x);
  widen_pack<x_t>(grad_pack, grad);
  chunk_sum_t squares = 0;
  chunk_sum_t products = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const chunk_sum_t value = x[j];
    squares += value * value;
    products += grad[j] * weight[j] * value;
  }
  sums[0] += squares;
  sums[1] += products;
}

// grad_x of a chunk but for grad_sum, and the chunk's part of the weight's gradient where wanted.
template <typename x_t, typename acc_t, int N, typename Args>
__device__ __forceinline__ void differentiate(Pack& x_pack, Pack& grad_pack,
                                              const acc_t (&weight)[N],
                                              const RowScale<acc_t>& scale, const Args& args,
                                              acc_t (&grad_weight)[N], acc_t (&grad_x)[N]) {
  acc_t x[N];
  acc_t grad[N];
  forget_values(x_pack);
  forget_values(grad_pack);
  widen_pack<x_t>(x_pack, x);
  widen_pack<x_t>(grad_pack, grad);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const acc_t normalized = x[j] * scale.rstd;
    grad_x[j] = scale.rstd * (grad[j] * weight[j] - normalized * scale.mean);
    if (args.partial_weight != nullptr) grad_weight[j] += grad[j] * normalized;
  }
}

template <typename x_t, typename acc_t, int N>
__device__ __forceinline__ void add_pack(const Pack& pack, acc_t (&values)[N]) {
  acc_t more[N];
  widen_pack<x_t>(pack, more);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] += more[j];
}

}  // namespace my_ops
