// rmsnorm's backward on CUDA: from tensors to the kernels of backward_kernel.cuh.
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "common/launch.cuh"
#include "rmsnorm/backward_launch.cuh"
#include "rmsnorm/cuda_types.cuh"
#include "rmsnorm/rmsnorm.h"
#include "rmsnorm/rmsnorm_dispatch.h"

namespace my_ops {

void rmsnorm_backward_cuda(const at::Tensor& grad, const at::Tensor& grad_sum, const at::Tensor& x,
                           const at::Tensor& weight, const RMSNormOptions& options,
                           const at::Tensor& grad_x, const at::Tensor& grad_weight) {
  const at::Tensor& weight_like = weight.defined() ? weight : grad_weight;
  rmsnorm_dispatch(x, weight_like, [&](auto x_zero, auto w_zero) {
    using x_t = typename CudaType<decltype(x_zero)>::type;
    using w_t = typename CudaType<decltype(w_zero)>::type;
    BackwardArgs<x_t, w_t> args = {};
    args.grad = static_cast<const x_t*>(grad.const_data_ptr());
    args.grad_sum = cuda_data_or_null<const x_t>(grad_sum);
    args.x = static_cast<const x_t*>(x.const_data_ptr());
    args.weight = cuda_data_or_null<const w_t>(weight);
    args.grad_x = cuda_data_or_null<x_t>(grad_x);
    args.grad_layout = row_layout(grad);
    if (grad_sum.defined()) args.grad_sum_layout = row_layout(grad_sum);
    args.x_layout = row_layout(x);
    args.H = x.size(-1);
    args.rows = x.numel() / args.H;
    args.eps = options.eps;
    args.weight_offset = options.weight_offset;

    constexpr int kChunk = kChunkElements<x_t>;
    const bool aligned = rows_aligned(kChunk, grad, grad_sum, x, weight, grad_x);
    const bool even =
        args.grad_layout.dims == 1 && args.x_layout.dims == 1 && args.grad_sum_layout.dims == 1;
    const Rows lie = !aligned ? Rows::unaligned : even ? Rows::even : Rows::aligned;
    const DeviceLimits limits = device_limits();
    const auto config = backward_config<x_t>(args.H, limits);
    if (!aligned && !takes_unaligned(config)) {
      const auto copied = [&](const at::Tensor& tensor) {
        return rows_aligned(kChunk, tensor) ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
      };
      return rmsnorm_backward_cuda(copied(grad), copied(grad_sum), copied(x), copied(weight),
                                   options, grad_x, grad_weight);
    }
    BackwardLauncher<x_t, w_t> launcher;
    C10_CUDA_CHECK((BackwardLauncher<x_t, w_t>::plan(config, lie, args.rows, limits, launcher)));
    using acc_t = typename Arithmetic<x_t>::acc_t;
    at::Tensor partial_weight;
    if (grad_weight.defined()) {
      const auto acc_dtype = c10::CppTypeToScalarType<acc_t>::value;
      partial_weight = at::empty({launcher.parts, args.H}, x.options().dtype(acc_dtype));
      args.partial_weight = partial_weight.mutable_data_ptr<acc_t>();
    }
    at::Tensor partial_sums;
    if (!config.whole) {
      partial_sums = at::empty({args.rows, config.slices, 2}, x.options().dtype(at::kDouble));
      args.partial_sums = partial_sums.mutable_data_ptr<double>();
    }
    const auto stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(launcher.launch(args, stream));
    if (grad_weight.defined()) {
      C10_CUDA_CHECK(launch_weight_kernel(
          args.partial_weight, static_cast<w_t*>(grad_weight.mutable_data_ptr()), launcher.parts,
          args.H, limits.max_cluster_blocks > 1, stream));
    }
  });
}

}  // namespace my_ops
