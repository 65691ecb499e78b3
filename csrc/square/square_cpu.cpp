// square on the CPU: plain loops, the readable twin of square_cuda.cu.
#include <ATen/Parallel.h>

#include "square/square.h"
#include "square/square_math.h"

namespace my_ops {

// Elements that are worth a thread: 32768 take about 10 us.
constexpr int64_t kGrainElements = 32768;

void square_forward_cpu(const TensorView& x, const TensorView& y) {
  dispatch(SquareTypes(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = x.const_data_ptr<scalar_t>();
    auto* y_data = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y_data[i] = square_value(x_data[i]);
    });
  });
}

void square_backward_cpu(const TensorView& grad, const TensorView& x, const TensorView& grad_x) {
  dispatch(SquareFloats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* grad_data = grad.const_data_ptr<scalar_t>();
    const auto* x_data = x.const_data_ptr<scalar_t>();
    auto* grad_x_data = grad_x.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        grad_x_data[i] = square_gradient(grad_data[i], x_data[i]);
      }
    });
  });
}

}  // namespace my_ops
