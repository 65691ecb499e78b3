// What the forward kernel is given, and how it stores its output. Device only, needs no torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rmsnorm/chunk.cuh"
#include "rmsnorm/row_layout.h"

namespace my_ops {

enum class OutputType { like_x, float32, float16, bfloat16 };

template <typename x_t, typename w_t>
struct ForwardArgs {
  const x_t* x;          // [rows, H], rows at x_layout
  const x_t* residual;   // [rows, H], rows at residual_layout; null: none
  const w_t* weight;     // [H]; null: ones
  void* y;               // [rows, H] dense, of output_type
  x_t* sum;              // [rows, H] dense, x + residual; null without residual
  double* partial_sums;  // [rows, slices], for Phase::sums and Phase::apply only
  RowLayout x_layout;
  RowLayout residual_layout;
  int64_t rows;
  int64_t H;
  double eps;
  double weight_offset;
  bool round_before_weight;  // to x_t, as Hugging Face's Llama does
  OutputType output_type;
  int slices;        // blocks that share a row
  int slice_chunks;  // chunks of a row in each of them
};

template <bool kAligned, typename x_t, typename acc_t, int N>
__device__ __forceinline__ void store_output(void* y, OutputType type, int64_t row, int64_t column,
                                             int64_t H, const acc_t (&values)[N]) {
  const auto store_as = [&](auto* rows) {
    using y_t = std::remove_pointer_t<decltype(rows)>;
    Vec<y_t, N> chunk;
    narrow_chunk(values, chunk);
    store_chunk<kAligned>(rows + row * H, column, H, chunk);
  };
  if (type == OutputType::like_x) {
    store_as(static_cast<x_t*>(y));
  } else if constexpr (!std::is_same_v<x_t, double>) {
    if (type == OutputType::float32) {
      store_as(static_cast<float*>(y));
    } else if constexpr (std::is_same_v<x_t, float>) {
      if (type == OutputType::float16) {
        store_as(static_cast<__half*>(y));
      } else {
        store_as(static_cast<__nv_bfloat16*>(y));
      }
    }
  }
}

}  // namespace my_ops
