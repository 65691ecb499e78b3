// What the backward kernels are given, and their arithmetic on one chunk. Device only, needs no
// torch.
#pragma once

#include <cstdint>

#include "rmsnorm/pack.cuh"
#include "rmsnorm/row_layout.h"

namespace my_ops {

// How the rows of all tensors lie.
enum class Rows {
  even,     // the rows of each evenly spaced, in packs that can be loaded and stored whole
  aligned,  // in such packs
  shifted,  // of so many packs, but loaded from any element on
  ragged,   // of any width, from any element on
};
template <Rows kRows>
constexpr bool kInPacks = kRows == Rows::even || kRows == Rows::aligned;

template <typename x_t, typename w_t>
struct BackwardArgs {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  const x_t* grad;        // [rows, H], rows at grad_layout
  const x_t* grad_sum;    // [rows, H], rows at grad_sum_layout, added to grad_x; null: none
  const x_t* x;           // [rows, H], rows at x_layout
  const w_t* weight;      // [H]; null: ones
  x_t* grad_x;            // [rows, H] dense; null: not wanted
  acc_t* partial_weight;  // [parts, H]; null: not wanted
  double* partial_sums;   // [rows, slices, 2], for Phase::sums and Phase::apply only
  RowLayout grad_layout;
  RowLayout grad_sum_layout;
  RowLayout x_layout;
  int64_t rows;
  int64_t H;
  double inverse_H;
  double eps;
  double weight_offset;
  int slices;        // blocks that share a row
  int slice_chunks;  // chunks of a row in each of them
  int warp_chunks;   // chunks of a slice in each of its warps, or each group of lanes
};

// Neighbouring columns: up to `chunks` chunks from chunk `first` of a slice, less where it or the
// row ends before.
struct OwnedColumns {
  int64_t first;  // column of the first chunk
  int chunks;
  int columns;  // in these chunks, up to the end of the row
};
template <int N, typename Args>
__device__ __forceinline__ OwnedColumns owned_columns(const Args& args, int64_t slice_first,
                                                      int first, int chunks) {
  const int64_t row_chunks = (args.H + N - 1) / N;
  const int64_t slice_end = min(row_chunks, slice_first + args.slice_chunks);
  const int64_t first_chunk = slice_first + first;
  const int owned =
      static_cast<int>(max(int64_t(0), min(slice_end - first_chunk, int64_t(chunks))));
  return {first_chunk * N, owned,
          static_cast<int>(max(int64_t(0), min(int64_t(owned) * N, args.H - first_chunk * N)))};
}

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

// weight + offset at the columns of a chunk.
template <bool kAligned, int N, typename acc_t, typename x_t, typename w_t>
__device__ __forceinline__ void load_weight(const BackwardArgs<x_t, w_t>& args, int64_t column,
                                            acc_t (&weight)[N]) {
  if (args.weight == nullptr) {
#pragma unroll
    for (int j = 0; j < N; ++j) weight[j] = 1;
  } else {
    widen_chunk(load_chunk<kAligned, N>(args.weight, column, args.H), weight);
#pragma unroll
    for (int j = 0; j < N; ++j) weight[j] += static_cast<acc_t>(args.weight_offset);
  }
}

// Stores a chunk of a row of partial_weight. By single elements the lanes would be 32 bytes apart:
// the store alone of one row of 8192 took 4 us.
template <bool kAligned, typename acc_t, int N>
__device__ __forceinline__ void store_partial(acc_t* row, int64_t column, int64_t H,
                                              const acc_t (&values)[N]) {
  constexpr int kEach = kChunkBytes / sizeof(acc_t);
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    if constexpr (kAligned) {
      acc_t part[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) part[j] = values[i + j];
      store_pack(row + column + i, narrow_pack<acc_t>(part));
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (column + i + j < H) row[column + i + j] = values[i + j];
      }
    }
  }
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
