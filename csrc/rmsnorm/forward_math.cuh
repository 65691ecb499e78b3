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

// The loops that write y: as usual (of x's type, nothing rounded before the weight); with x * rstd
// rounded to x's type before the weight; and one for all else, which chooses the type and the order
// chunk by chunk. With a loop for every type and order it took half as long again to compile.
enum class Loop { usual, rounding, choosing };

// What turns a row's x into its y.
template <typename x_t, typename w_t>
class Normalizer {
  using acc_t = typename Arithmetic<x_t>::acc_t;

 public:
  __device__ __forceinline__ Normalizer(const ForwardArgs<x_t, w_t>& args, double sum_of_squares) {
    const double exact = rsqrt(sum_of_squares * args.inverse_H + args.eps);
    rstd_ = static_cast<acc_t>(exact);
    rstd_rest_ = static_cast<acc_t>(exact - rstd_);
    offset_ = args.weight == nullptr ? acc_t(0) : static_cast<acc_t>(args.weight_offset);
    rounds_ = args.round_before_weight;
  }

  // x * rstd * (weight + offset), in x_t unless the type is still to be chosen. Results of 32 bits
  // or more also take the rest of rstd and the error of the first product, which keeps them within
  // one unit in the last place of the exact result; in those of 16 bits that would not show.
  template <Loop kLoop, int N>
  __device__ __forceinline__ auto y(Vec<x_t, N>& x, Vec<w_t, N>& weight) const {
    using y_t = std::conditional_t<kLoop == Loop::choosing, acc_t, x_t>;
    const bool rounds = kLoop == Loop::choosing ? rounds_ : kLoop == Loop::rounding;
    keep_packed(x);
    keep_packed(weight);
    acc_t values[N];
    acc_t weights[N];
    widen_chunk(x, values);
    widen_chunk(weight, weights);
    acc_t normalized[N];
    acc_t rounded[N];
#pragma unroll
    for (int j = 0; j < N; ++j) normalized[j] = values[j] * rstd_;
    narrow_chunk(normalized, x);
    widen_chunk(x, rounded);
    acc_t results[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const acc_t w = weights[j] + offset_;
      acc_t result = normalized[j] * w;
      if constexpr (sizeof(y_t) > 2) {
        const acc_t error = fma(values[j], rstd_rest_, fma(values[j], rstd_, -normalized[j]));
        result = fma(normalized[j], w, error * w);
      }
      results[j] = rounds ? rounded[j] * w : result;
    }
    Vec<y_t, N> chunk;
    narrow_chunk(results, chunk);
    return chunk;
  }

 private:
  acc_t rstd_;
  acc_t rstd_rest_;  // 1 / sqrt(mean + eps) is rstd + rstd_rest
  acc_t offset_;
  bool rounds_;
};

// Where a loop's y goes, from its element `first` on.
template <typename x_t, Loop kLoop>
class Output {
 public:
  template <typename w_t>
  __device__ __forceinline__ Output(const ForwardArgs<x_t, w_t>& args, int64_t first)
      : type_(args.output_type) {
    int bytes = sizeof(x_t);
    if (kLoop == Loop::choosing && type_ != OutputType::like_x) {
      bytes = type_ == OutputType::float32 ? sizeof(float) : sizeof(__half);
    }
    y_ = static_cast<unsigned char*>(args.y) + first * bytes;
  }

  // What Normalizer::y returned, as elements [index, index + N) from there.
  template <typename y_t, int N>
  __device__ __forceinline__ void store(int index, const Vec<y_t, N>& chunk) const {
    if constexpr (kLoop == Loop::choosing && std::is_same_v<x_t, float>) {
      if (type_ == OutputType::float16) return store_as<__half>(index, chunk);
      if (type_ == OutputType::bfloat16) return store_as<__nv_bfloat16>(index, chunk);
    } else if constexpr (kLoop == Loop::choosing && sizeof(x_t) == 2) {
      if (type_ == OutputType::like_x) return store_as<x_t>(index, chunk);
    }
    my_ops::store(reinterpret_cast<y_t*>(y_) + index, chunk);
  }

 private:
  template <typename y_t, typename acc_t, int N>
  __device__ __forceinline__ void store_as(int index, const Vec<acc_t, N>& results) const {
    Vec<y_t, N> chunk;
    narrow_chunk(results.elements, chunk);
    my_ops::store(reinterpret_cast<y_t*>(y_) + index, chunk);
  }

  unsigned char* y_;
  OutputType type_;
};

// Calls use(loop) with the loop as the type of its argument. Where rows come in packs a choice in
// every chunk costs up to a tenth of the speed, so rounding, which models use, has a loop there.
template <Loop kLoop>
using LoopConstant = std::integral_constant<Loop, kLoop>;
template <Access kAccess, typename x_t, typename w_t, typename Use>
__device__ __forceinline__ void with_loop(const ForwardArgs<x_t, w_t>& args, const Use& use) {
  const bool like_x = args.output_type == OutputType::like_x;
  if (like_x && !args.round_before_weight) return use(LoopConstant<Loop::usual>());
  if constexpr (kAccess == Access::packs) {
    if (like_x) return use(LoopConstant<Loop::rounding>());
  }
  use(LoopConstant<Loop::choosing>());
}

}  // namespace my_ops
