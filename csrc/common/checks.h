// Host: argument checks. Every message names the operator, the argument, what was expected and what
// came.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

// Raises "my_ops.<op>: <argument>: expected <expected>, got <got...>" unless `condition` holds.
#define MY_OPS_CHECK(condition, op, argument, expected, ...)                               \
  TORCH_CHECK(condition, "my_ops.", op, ": ", argument, ": expected ", expected, ", got ", \
              __VA_ARGS__)

namespace my_ops {

// A dense CPU or CUDA tensor whose memory holds its values (the dispatcher resolves lazy negative
// and conjugate bits; a direct call of `my_ops._C` does not).
inline void check_device(const char* op, const char* argument, const at::Tensor& tensor) {
  MY_OPS_CHECK(tensor.defined(), op, argument, "a tensor", "None");
  MY_OPS_CHECK(tensor.is_cpu() || tensor.is_cuda(), op, argument, "a CPU or CUDA tensor",
               tensor.device());
#ifndef MY_OPS_WITH_CUDA
  MY_OPS_CHECK(tensor.is_cpu(), op, argument,
               "a CPU tensor (my_ops was built without CUDA: rebuild it with MY_OPS_CUDA=1)",
               tensor.device());
#endif
  MY_OPS_CHECK(tensor.layout() == at::kStrided, op, argument, "a strided tensor", tensor.layout());
  MY_OPS_CHECK(!tensor.is_conj() && !tensor.is_neg(), op, argument, "a materialized tensor",
               "a lazy conjugate or negative (call resolve_conj() or resolve_neg())");
}

inline void check_same_device(const char* op, const char* argument, const at::Tensor& tensor,
                              const char* like_argument, const at::Tensor& like) {
  check_device(op, argument, tensor);
  MY_OPS_CHECK(tensor.device() == like.device(), op, argument,
               c10::str("the device of ", like_argument, " (", like.device(), ")"),
               tensor.device());
}

inline void check_same_dtype(const char* op, const char* argument, const at::Tensor& tensor,
                             const char* like_argument, const at::Tensor& like) {
  MY_OPS_CHECK(tensor.scalar_type() == like.scalar_type(), op, argument,
               c10::str("the dtype of ", like_argument, " (", like.scalar_type(), ")"),
               tensor.scalar_type());
}

inline void check_same_shape(const char* op, const char* argument, const at::Tensor& tensor,
                             const char* like_argument, const at::Tensor& like) {
  MY_OPS_CHECK(tensor.sizes() == like.sizes(), op, argument,
               c10::str("the shape of ", like_argument, " (", like.sizes(), ")"), tensor.sizes());
}

}  // namespace my_ops
