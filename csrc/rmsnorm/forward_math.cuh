// The arithmetic of a forward on one chunk. Device only, needs no torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rmsnorm/access.cuh"
#include "rmsnorm/forward_args.cuh"

namespace my_ops {

// `sum` and the squares of a chunk.
template <typename sum_t, typename x_t, int N>
__device__ __forceinline__ sum_t add_squares(sum_t sum, const Vec<x_t, N>& chunk) {
  typename Arithmetic<x_t>::acc_t values[N];
  widen_chunk(chunk, values);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    sum += static_cast<sum_t>(values[j]) * static_cast<sum_t>(values[j]);
  }
  return sum;
}

// x + residual, rounded to x_t: statistics are taken of what backward and the caller see.
template <typename x_t, int N>
__device__ __forceinline__ void add_chunk(Vec<x_t, N>& x, const Vec<x_t, N>& residual) {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  acc_t values[N];
  acc_t more[N];
  widen_chunk(x, values);
  widen_chunk(residual, more);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] += more[j];
  narrow_chunk(values, x);
}

// What turns a row's x into its y.
template <typename x_t, typename w_t>
struct Normalizer {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  acc_t rstd;
  acc_t rstd_rest;  // 1 / sqrt(mean + eps) is rstd + rstd_rest
  acc_t offset;

  __device__ __forceinline__ Normalizer(const ForwardArgs<x_t, w_t>& args, double sum_of_squares) {
    const double exact = rsqrt(sum_of_squares * args.inverse_H + args.eps);
    rstd = static_cast<acc_t>(exact);
    rstd_rest = static_cast<acc_t>(exact - rstd);
    offset = args.weight == nullptr ? acc_t(0) : static_cast<acc_t>(args.weight_offset);
  }

  // x * rstd * (weight + offset). Results of 32 bits or more also take the rest of rstd and the
  // error of the first product, which keeps them within one unit in the last place of the exact
  // result; those of 16 bits do without, the difference does not show.
  template <bool kRoundBeforeWeight, typename y_t, int N>
  __device__ __forceinline__ Vec<y_t, N> y(Vec<x_t, N>& x, Vec<w_t, N>& weight) const {
    constexpr bool kExact = sizeof(y_t) > 2 && !kRoundBeforeWeight;
    keep_packed(x);
    keep_packed(weight);
    acc_t values[N];
    acc_t weights[N];
    widen_chunk(x, values);
    widen_chunk(weight, weights);
    acc_t normalized[N];
#pragma unroll
    for (int j = 0; j < N; ++j) normalized[j] = values[j] * rstd;
    if constexpr (kRoundBeforeWeight) {
      narrow_chunk(normalized, x);
      widen_chunk(x, normalized);
    }
    acc_t results[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const acc_t w = weights[j] + offset;
      if constexpr (kExact) {
        const acc_t error = fma(values[j], rstd_rest, fma(values[j], rstd, -normalized[j]));
        results[j] = fma(normalized[j], w, error * w);
      } else {
        results[j] = normalized[j] * w;
      }
    }
    Vec<y_t, N> chunk;
    narrow_chunk(results, chunk);
    return chunk;
  }
};

// Calls use(y, round_before_weight) with y as a pointer to its type and a compile-time flag: a
// choice in every chunk would keep the compiler from loading the next one meanwhile.
template <typename x_t, typename w_t, typename Use>
__device__ __forceinline__ void with_output(const ForwardArgs<x_t, w_t>& args, const Use& use) {
  const auto with_type = [&](auto* y) {
    if (args.round_before_weight) {
      use(y, std::true_type());
    } else {
      use(y, std::false_type());
    }
  };
  if constexpr (std::is_same_v<x_t, float>) {
    if (args.output_type == OutputType::float16) {
      with_type(static_cast<__half*>(args.y));
    } else if (args.output_type == OutputType::bfloat16) {
      with_type(static_cast<__nv_bfloat16*>(args.y));
    } else {
      with_type(static_cast<float*>(args.y));
    }
  } else if constexpr (std::is_same_v<x_t, double>) {
    with_type(static_cast<double*>(args.y));
  } else if (args.output_type == OutputType::float32) {
    with_type(static_cast<float*>(args.y));
  } else {
    with_type(static_cast<x_t*>(args.y));
  }
}

}  // namespace my_ops
