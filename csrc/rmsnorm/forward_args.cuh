// What the forward kernels are given. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/phase.cuh"
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
  double* partial_sums;  // [rows, slices] of two launches, or TileSums
  RowLayout x_layout;
  RowLayout residual_layout;
  int64_t rows;
  int64_t H;
  double inverse_H;
  double eps;
  double weight_offset;
  bool round_before_weight;  // to x_t, as Hugging Face's Llama does
  OutputType output_type;
  Phase phase;       // where kInPhases
  int rows_in_turn;  // that lanes take one after another, where kRowsInTurn
  bool few_blocks;   // so few that the kernel in front of this one is as long
  int slices;        // blocks that share a row
  int slice_chunks;  // chunks of a row in each of them
};

}  // namespace my_ops
