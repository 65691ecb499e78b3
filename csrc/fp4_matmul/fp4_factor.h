// Host: the arguments of fp4_matmul's operators, checked and turned into factors and matrices.
#pragma once

#include <ATen/ops/empty.h>

#include <vector>

#include "common/ceil_div.h"
#include "common/fp4_names.h"
#include "common/last_dimension.h"
#include "fp4_matmul/fp4_matmul.h"

namespace my_ops {

using Sizes = std::vector<int64_t>;

inline void check_dense(const char* op, const char* argument, const at::Tensor& tensor,
                        const char* like_argument, const at::Tensor& like) {
  check_same_device(op, argument, tensor, like_argument, like);
  check_fp4_dtype(op, argument, tensor);
}

// A tensor [..., cols] as a matrix of which one dimension has stride 1.
inline at::Tensor as_matrix(const at::Tensor& tensor) {
  const auto matrix = flatten_rows(tensor);
  return matrix.stride(0) == 1 || matrix.stride(1) == 1 ? matrix : matrix.contiguous();
}

inline at::Tensor empty_product(at::IntArrayRef leading_of, int64_t last, const at::Tensor& like,
                                at::ScalarType dtype) {
  return at::empty(with_last(leading_of, last), like.options().dtype(dtype));
}

// A packed operand as an operator got it. Messages name its parts: "a_packed", "a_scale", "a_amax".
struct PackedArgument {
  const char* op;
  std::string name;
  const at::Tensor& packed;
  const at::Tensor& scale;
  const std::optional<at::Tensor>& amax;
  at::IntArrayRef shape;  // logical
  bool transposed;        // stored as its transpose, a matrix
  bool contracts_last;    // of the logical dimensions; else the one before
  Fp4Format format;

  // As a matrix, leading dimensions flattened, that is stored with blocks along its columns.
  bool contracts_cols() const { return contracts_last != transposed; }
  int64_t cols() const { return transposed ? shape.front() : shape.back(); }
  int64_t rows() const {
    if (transposed) return shape.back();
    int64_t rows = 1;
    for (const int64_t size : shape.slice(0, shape.size() - 1)) rows *= size;
    return rows;
  }
  int64_t outer() const { return contracts_cols() ? rows() : cols(); }
  int64_t depth() const { return contracts_cols() ? cols() : rows(); }

  void check() const {
    MY_OPS_CHECK(!shape.empty() && (!transposed || shape.size() == 2), op, name + "_shape",
                 transposed ? "two dimensions" : "at least one dimension", shape);
    check_bytes("_packed", packed, ceil_div(cols(), 2));
    check_bytes("_scale", scale, ceil_div(cols(), fp4_block_size(format)));
    if (amax) {
      check_fp4_amax(op, (name + "_amax").c_str(), *amax, format, (name + "_packed").c_str(),
                     packed);
    }
  }

  // The operand as the kernels take it; copies what is not dense.
  Fp4Factor factor() const {
    const auto matrix = [&](const at::Tensor& bytes) {
      const auto dense = bytes.contiguous();
      return dense.dim() == 2 ? dense : dense.view({rows(), dense.size(-1)});
    };
    return {matrix(packed), matrix(scale),   amax.value_or(at::Tensor()), format, rows(),
            cols(),         contracts_cols()};
  }

 private:
  void check_bytes(const char* part, const at::Tensor& tensor, int64_t last) const {
    const std::string argument = name + part;
    check_same_device(op, argument.c_str(), tensor, (name + "_packed").c_str(), packed);
    MY_OPS_CHECK(tensor.scalar_type() == at::kByte, op, argument, "uint8", tensor.scalar_type());
    Sizes sizes = shape.vec();
    if (transposed) std::swap(sizes.front(), sizes.back());
    sizes.back() = last;
    MY_OPS_CHECK(tensor.sizes() == at::IntArrayRef(sizes), op, argument,
                 c10::str("the shape ", at::IntArrayRef(sizes)), tensor.sizes());
  }
};

}  // namespace my_ops
