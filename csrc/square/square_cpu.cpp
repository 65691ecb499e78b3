// square on the CPU: plain loops, the readable twin of square_cuda.cu.
#include <ATen/Parallel.h>

#include "common/cpu.h"
#include "square/square.h"
#include "square/square_math.h"

namespace my_ops {
namespace {

// Elements that are worth a thread: 32768 take about 10 us.
constexpr int64_t kGrainElements = 32768;

template <typename scalar_t>
MY_OPS_VECTORS void square_elements(const scalar_t* x, int64_t begin, int64_t end, scalar_t* y) {
  for (int64_t i = begin; i < end; ++i) y[i] = square_value(x[i]);
}

template <typename scalar_t>
MY_OPS_VECTORS void square_gradients(const scalar_t* grad, const scalar_t* x, int64_t begin,
                                     int64_t end, scalar_t* grad_x) {
  for (int64_t i = begin; i < end; ++i) grad_x[i] = square_gradient(grad[i], x[i]);
}

}  // namespace

void square_forward_cpu(const TensorView& x, const TensorView& y) {
  const bool in_place = y.const_data_ptr() == x.const_data_ptr();
  if (!in_place) prefer_huge_pages(y);
  dispatch(SquareTypes(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = x.const_data_ptr<scalar_t>();
    auto* y_data = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      square_elements(x_data, begin, end, y_data);
    });
  });
}

void square_backward_cpu(const TensorView& grad, const TensorView& x, const TensorView& grad_x) {
  prefer_huge_pages(grad_x);
  dispatch(SquareFloats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* grad_data = grad.const_data_ptr<scalar_t>();
    const auto* x_data = x.const_data_ptr<scalar_t>();
    auto* grad_x_data = grad_x.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      square_gradients(grad_data, x_data, begin, end, grad_x_data);
    });
  });
}

}  // namespace my_ops
