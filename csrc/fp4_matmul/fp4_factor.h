// Host: the arguments of fp4_matmul's operators, checked and turned into factors.
#pragma once

#include <vector>

#include "common/ceil_div.h"
#include "common/fp4_names.h"
#include "fp4_matmul/fp4_matmul.h"

namespace my_ops {

using Sizes = std::vector<int64_t>;

inline void check_dense(const char* op, const char* argument, const at::Tensor& tensor,
                        const char* like_argument, const at::Tensor& like) {
  check_same_device(op, argument, tensor, like_argument, like);
  check_fp4_dtype(op, argument, tensor);
}

// How messages name one packed operand: "a" gives "a_packed", "a_scale", "a_amax".
struct PackedArgument {
  const char* op;
  std::string name;
  const at::Tensor& packed;
  const at::Tensor& scale;
  const std::optional<at::Tensor>& amax;

  void check_bytes(const std::string& part, const at::Tensor& tensor, Sizes sizes,
                   int64_t last) const {
    const std::string argument = name + part;
    sizes.back() = last;
    check_same_device(op, argument.c_str(), tensor, (name + "_packed").c_str(), packed);
    MY_OPS_CHECK(tensor.scalar_type() == at::kByte, op, argument, "uint8", tensor.scalar_type());
    MY_OPS_CHECK(tensor.sizes() == at::IntArrayRef(sizes), op, argument,
                 c10::str("the shape ", at::IntArrayRef(sizes)), tensor.sizes());
  }

  // The operand as a matrix (leading dimensions flattened) of which the product contracts the last
  // logical dimension, or the one before it.
  Fp4Factor factor(at::IntArrayRef shape, bool transposed, bool contracts_last,
                   Fp4Format format) const {
    MY_OPS_CHECK(!shape.empty() && (!transposed || shape.size() == 2), op, name + "_shape",
                 transposed ? "two dimensions" : "at least one dimension", shape);
    Sizes stored = shape.vec();
    if (transposed) std::swap(stored[0], stored[1]);
    const int64_t cols = stored.back();
    check_bytes("_packed", packed, stored, ceil_div(cols, 2));
    check_bytes("_scale", scale, stored, ceil_div(cols, fp4_block_size(format)));
    if (amax) {
      MY_OPS_CHECK(format == Fp4Format::nvfp4, op, name + "_amax",
                   "None (the format 'mxfp4' has no tensor scale)", "a tensor");
      check_same_device(op, (name + "_amax").c_str(), *amax, (name + "_packed").c_str(), packed);
      MY_OPS_CHECK(amax->scalar_type() == at::kFloat && amax->numel() == 1, op, name + "_amax",
                   "one float32 element", amax->numel(), " of ", amax->scalar_type());
    }
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < stored.size(); ++d) rows *= stored[d];
    const auto matrix = [&](const at::Tensor& bytes) {
      return bytes.contiguous().view({rows, bytes.size(-1)});
    };
    return {matrix(packed), matrix(scale), amax, format, rows, cols, contracts_last != transposed};
  }
};

}  // namespace my_ops
