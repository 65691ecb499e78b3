// square: argument checks, allocation, choice of the device, registration.
#include "square/square.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "common/checks.h"
#include "common/device.h"
#include "common/register.h"

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

// An operator without a result has nothing that could carry the refusal of common/register.h.
void square_inplace_autograd(at::Tensor& x) {
  const bool differentiated =
      (at::GradMode::is_enabled() && x.requires_grad()) || x._fw_grad(0).defined();
  MY_OPS_CHECK(!differentiated, "square_inplace", "x", "a tensor that needs no gradient",
               "one that does (my_ops.square_ differentiates)");
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("my_ops::square_inplace", "")
                             .typed<void(at::Tensor&)>();
  const at::AutoDispatchBelowAutograd below;
  op.call(x);
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

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library, "square_forward(Tensor x) -> Tensor", &square_forward);
  define_op(library, "square_inplace(Tensor(a!) x) -> ()", &square_inplace,
            torch::CppFunction::makeFromUnboxedFunction(&square_inplace_autograd));
  define_op(library, "square_backward(Tensor grad, Tensor x) -> Tensor", &square_backward);
}

}  // namespace my_ops
