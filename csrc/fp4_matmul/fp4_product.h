// What fp4_matmul's operators ask of the CPU and of CUDA: products with packed factors.
#pragma once

#include "common/fp4.h"
#include "common/tensor_view.h"

namespace my_ops {

// A packed matrix as a factor: its blocks run along the columns, the product contracts one of the
// two dimensions.
template <typename Tensor>
struct Fp4FactorOf {
  Tensor packed;  // [rows, ceil(cols / 2)], dense
  Tensor scale;   // [rows, ceil(cols / block)], dense
  Tensor amax;    // one float32, NVFP4 with two levels; else undefined
  Fp4Format format;
  int64_t rows;
  int64_t cols;
  bool contracts_cols;

  int64_t outer() const { return contracts_cols ? rows : cols; }
  int64_t depth() const { return contracts_cols ? cols : rows; }

  template <typename View>
  operator Fp4FactorOf<View>() const {
    return {packed, scale, amax, format, rows, cols, contracts_cols};
  }
};
using Fp4Factor = Fp4FactorOf<at::Tensor>;
using Fp4FactorView = Fp4FactorOf<TensorView>;

// y = x * b.
template <typename Tensor>
struct DenseProductOf {
  Tensor x;
  Fp4FactorOf<Tensor> b;
  Tensor y;

  template <typename View>
  operator DenseProductOf<View>() const {
    return {x, b, y};
  }
};
using DenseProduct = DenseProductOf<at::Tensor>;
using DenseProductView = DenseProductOf<TensorView>;

// y [M, N] = a * b, and y = x * b + bias for a dense x [M, K], of which one dimension has stride 1;
// the bias may be undefined. y has any strides. No dimension of y is zero; K may be. On the CPU by
// torch's own matmul, which takes tensors.
void fp4_matmul_packed_cpu(const Fp4Factor& a, const Fp4Factor& b, at::Tensor& y);
void fp4_matmul_packed_cuda(const Fp4FactorView& a, const Fp4FactorView& b, const TensorView& y);
void fp4_matmul_dense_cpu(const at::Tensor& x, const Fp4Factor& b, const at::Tensor& bias,
                          at::Tensor& y);
void fp4_matmul_dense_cuda(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                           const TensorView& y);

// Two products without a bias, with the bits of one after the other.
void fp4_matmul_dense_two_cpu(const DenseProduct& first, const DenseProduct& second);
void fp4_matmul_dense_two_cuda(const DenseProductView& first, const DenseProductView& second);

}  // namespace my_ops
