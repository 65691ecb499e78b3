// rmsnorm's backward on CUDA: from tensors to the arguments of a kernel. Which one a width gets, of
// backward_kernel.cuh, backward_wide_kernel.cuh and backward_widest_kernel.cuh:
// backward_config.cuh. The weight's gradient is then added up by weight_gradient.cuh.
#include "common/cuda_types.cuh"
#include "rmsnorm/backward_launch.cuh"
#include "rmsnorm/rmsnorm.h"
#include "rmsnorm/rmsnorm_cuda.cuh"
#include "rmsnorm/rmsnorm_dispatch.h"

namespace my_ops {

void rmsnorm_backward_cuda(const TensorView& grad, const TensorView& grad_sum, const TensorView& x,
                           const TensorView& weight, const RMSNormOptions& options,
                           const TensorView& grad_x, const TensorView& grad_weight) {
  const TensorView& weight_like = weight.defined() ? weight : grad_weight;
  rmsnorm_dispatch(x, weight_like, [&](auto x_zero, auto w_zero) {
    using x_t = typename CudaType<decltype(x_zero)>::type;
    using w_t = typename CudaType<decltype(w_zero)>::type;
    BackwardArgs<x_t> args = {};
    args.grad = grad.const_data_ptr<x_t>();
    args.grad_sum = grad_sum.const_data_ptr<x_t>();
    args.x = x.const_data_ptr<x_t>();
    args.weight = weight.const_data_ptr();
    args.float_weight = std::is_same_v<w_t, float>;
    args.grad_x = grad_x.mutable_data_ptr<x_t>();
    args.grad_layout = row_layout(grad);
    if (grad_sum.defined()) args.grad_sum_layout = row_layout(grad_sum);
    args.x_layout = row_layout(x);
    args.H = x.size(-1);
    args.rows = x.numel() / args.H;
    args.eps = options.eps;
    args.weight_offset = options.weight_offset;

    constexpr int kChunk = kChunkElements<x_t>;
    const bool aligned = rows_aligned(kChunk, grad, grad_sum, x, weight, grad_x);
    const Rows lie = rows_lie(args, aligned);
    const DeviceLimits limits = device_limits(
        rmsnorm_backward_kernel<x_t, 0, kBackwardVectors, Rows::ragged, Phase::whole>);
    const auto config = backward_config<x_t>(args.H, limits);
    if (!takes(config, lie)) {
      OwnedTensor copies[4];
      const auto aligned_rows = [&](const TensorView& tensor, OwnedTensor& copy) {
        if (rows_aligned(kChunk, tensor)) return tensor;
        copy = OwnedTensor::contiguous_copy(tensor);
        return copy.view();
      };
      return rmsnorm_backward_cuda(aligned_rows(grad, copies[0]), aligned_rows(grad_sum, copies[1]),
                                   aligned_rows(x, copies[2]), aligned_rows(weight, copies[3]),
                                   options, grad_x, grad_weight);
    }
    BackwardLauncher<x_t> launcher;
    MY_OPS_CUDA_CHECK(
        BackwardLauncher<x_t>::plan(config, lie, args.rows, args.H, limits, launcher));
    using acc_t = typename Arithmetic<x_t>::acc_t;
    OwnedTensor partial_weight;
    if (grad_weight.defined()) {
      partial_weight = OwnedTensor::empty(launcher.parts * args.H, kScalarType<acc_t>);
      args.partial_weight = partial_weight.data_ptr<acc_t>();
    }
    OwnedTensor partial_sums;
    if (!config.whole) {
      partial_sums = OwnedTensor::empty(args.rows * config.slices * 2, ScalarType::Double);
      args.partial_sums = partial_sums.data_ptr<double>();
    }
    const auto stream = current_stream();
    MY_OPS_CUDA_CHECK(launcher.launch(args, stream));
    if (grad_weight.defined()) {
      MY_OPS_CUDA_CHECK(launch_weight_kernel(args.partial_weight,
                                             grad_weight.mutable_data_ptr<w_t>(), launcher.parts,
                                             args.H, limits.max_cluster_blocks > 1, stream));
    }
  });
}

}  // namespace my_ops
