// What the backward kernels are given, and what of it a group of threads owns. Device only, needs
// no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/chunk.cuh"
#include "rmsnorm/row_layout.h"

namespace my_ops {

// How the rows of all tensors lie.
enum class Rows {
  even,     // the rows of each evenly spaced, in packs that can be loaded and stored whole
  aligned,  // in such packs
  shifted,  // of so many packs, but loaded from any element on
  in_step,  // of any width, evenly spaced, in all tensors equally far from a pack's beginning
  ragged,   // of any width, from any element on
};
// Whether rows are loaded in whole packs, and whether they may begin and end within a pack of
// grad_x.
template <Rows kRows>
constexpr bool kLoadsPacks = kRows != Rows::shifted && kRows != Rows::ragged;
__host__ __device__ constexpr bool has_edges(Rows rows) {
  return rows == Rows::in_step || rows == Rows::ragged;
}
template <Rows kRows>
constexpr bool kHasEdges = has_edges(kRows);

template <typename x_t>
struct BackwardArgs {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  const x_t* grad;        // [rows, H], rows at grad_layout
  const x_t* grad_sum;    // [rows, H], rows at grad_sum_layout, added to grad_x; null: none
  const x_t* x;           // [rows, H], rows at x_layout
  const void* weight;     // [H] of x_t or, where `float_weight`, of float; null: ones
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
  int vectors;       // chunks of a slice in each of its threads, for wide kernels: wide_vectors()
  bool float_weight;
};

// Neighbouring columns: up to `chunks` chunks from chunk `first` of a slice, less where it or the
// row ends before.
struct OwnedColumns {
  int64_t first;  // column of the first chunk
  int chunks;
  int columns;    // in these chunks, up to the end of the row
  int begin = 0;  // of the first chunk: elements that belong to others

  // The same columns in chunks that begin `elements` earlier.
  template <int N>
  __device__ __forceinline__ void begin_earlier(int elements) {
    if (chunks == 0) return;
    first -= elements;
    begin = elements;
    columns += elements;
    chunks = (columns + N - 1) / N;
  }
  __device__ __forceinline__ bool has(int position) const {
    return begin <= position && position < columns;
  }
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

}  // namespace my_ops
