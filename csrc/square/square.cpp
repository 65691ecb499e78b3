// square: argument checks, allocation, choice of the device, derivatives, registration.
#include "square/square.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include "common/checks.h"
#include "common/device.h"
#include "common/differentiable.h"

namespace my_ops {
namespace {

constexpr const char* kDtypes =
    "int8, int16, int32, int64, uint8, float16, bfloat16, float32, float64, complex64 or "
    "complex128";

// `tensor`, or a copy of it, in the memory order of `like`: the kernels walk memory, not indices.
at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.strides() == like.strides()) return tensor;
  return at::empty_like(like).copy_(tensor);
}

}  // namespace

at::Tensor square_forward(const at::Tensor& x) {
  check_device("square", "x", x);
  const bool is_bool = x.scalar_type() == at::kBool;
  MY_OPS_CHECK(is_bool || has_dtype(SquareTypes(), x.scalar_type()), "square", "x", kDtypes,
               x.scalar_type());
  const OperatorGuard guard(x);
  if (is_bool) return x.to(at::kLong);  // as torch: True ** 2 is an integer
  auto y = at::empty_like(x);
  if (y.numel() == 0) return y;
  MY_OPS_CALL_ON_DEVICE_OF(x, square_forward, in_layout_of(x, y), y);
  return y;
}

void square_inplace(at::Tensor& x) {
  check_device("square_", "x", x);
  MY_OPS_CHECK(has_dtype(SquareTypes(), x.scalar_type()), "square_", "x", kDtypes, x.scalar_type());
  MY_OPS_CHECK(at::has_internal_overlap(x) != at::MemOverlap::Yes, "square_", "x",
               "memory of its own for each element (clone() it first)", "strides ", x.strides());
  x.unsafeGetTensorImpl()->bump_version();  // autograd refuses to use an x saved before this
  const OperatorGuard guard(x);
  if (x.numel() == 0) return;
  if (x.is_non_overlapping_and_dense()) {
    MY_OPS_CALL_ON_DEVICE_OF(x, square_forward, x, x);
  } else {
    x.copy_(square_forward(x));
  }
}

at::Tensor square_backward(const at::Tensor& grad, const at::Tensor& x) {
  check_device("square_backward", "x", x);
  MY_OPS_CHECK(has_dtype(SquareFloats(), x.scalar_type()), "square_backward", "x",
               "a floating-point or complex dtype", x.scalar_type());
  check_same_device("square_backward", "grad", grad, "x", x);
  check_same_dtype("square_backward", "grad", grad, "x", x);
  check_same_shape("square_backward", "grad", grad, "x", x);
  const OperatorGuard guard(x);
  auto grad_x = at::empty_like(x);
  if (grad_x.numel() == 0) return grad_x;
  MY_OPS_CALL_ON_DEVICE_OF(x, square_backward, in_layout_of(grad, grad_x), in_layout_of(x, grad_x),
                           grad_x);
  return grad_x;
}

// ---- Derivatives ----

struct SquareFormula {
  static constexpr const char* kName = "SquareBackward";

  template <typename Node>
  void remember(Node& node, const at::Tensor& /*y*/, const at::Tensor& x) {
    node.save(x);
  }
  std::vector<double> numbers() const { return {}; }

  variable_list operator()(const Wanted&, const variable_list& grads,
                           const variable_list& saved) const {
    return {Operator<&square_backward>::call(grads[0], saved[0])};
  }
};

struct SquareBackwardFormula {
  static constexpr const char* kName = "SquareBackwardBackward";

  template <typename Node>
  void remember(Node& node, const at::Tensor& /*grad_x*/, const at::Tensor& grad,
                const at::Tensor& x) {
    node.save(grad, x);
  }
  std::vector<double> numbers() const { return {}; }

  variable_list operator()(const Wanted& wanted, const variable_list& grads,
                           const variable_list& saved) const {
    const auto &grad = saved[0], &x = saved[1], twice = grads[0] * 2;
    return {wanted[0] ? twice * x : at::Tensor(), wanted[1] ? twice.conj() * grad : at::Tensor()};
  }
};

// The in-place operator refuses an x that needs a gradient: my_ops.square_ differentiates, with a
// copy of x.
void square_inplace_autograd(c10::DispatchKeySet keys, at::Tensor& x) {
  const bool differentiated =
      torch::autograd::compute_requires_grad(x) || torch::autograd::isFwGradDefined(x);
  MY_OPS_CHECK(!differentiated, "square_inplace", "x", "a tensor that needs no gradient",
               "one that does (my_ops.square_ differentiates)");
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("my_ops::square_inplace", "")
                             .typed<void(at::Tensor&)>();
  const at::AutoDispatchBelowAutograd below;
  op.redispatch(keys & c10::after_autograd_keyset, x);
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_differentiable_op<&square_forward, SquareFormula>(library,
                                                           "square_forward(Tensor x) -> Tensor");
  define_differentiable_op<&square_backward, SquareBackwardFormula>(
      library, "square_backward(Tensor grad, Tensor x) -> Tensor");
  define_op(library, "square_inplace(Tensor(a!) x) -> ()", &square_inplace,
            torch::CppFunction(&square_inplace_autograd));
}

}  // namespace my_ops
