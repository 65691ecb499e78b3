// rmsnorm's forward on CUDA: from tensors to the kernel of forward_kernel.cuh.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "rmsnorm/cuda_types.cuh"
#include "rmsnorm/forward_launch.cuh"
#include "rmsnorm/rmsnorm.h"
#include "rmsnorm/rmsnorm_dispatch.h"

namespace my_ops {
namespace {

OutputType output_type(const at::Tensor& x, const at::Tensor& y) {
  if (y.scalar_type() == x.scalar_type()) return OutputType::like_x;
  if (y.scalar_type() == at::kFloat) return OutputType::float32;
  return y.scalar_type() == at::kHalf ? OutputType::float16 : OutputType::bfloat16;
}

}  // namespace

void rmsnorm_forward_cuda(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                          const RMSNormOptions& options, const at::Tensor& y,
                          const at::Tensor& sum) {
  rmsnorm_dispatch(x, weight, [&](auto x_zero, auto w_zero) {
    using x_t = typename CudaType<decltype(x_zero)>::type;
    using w_t = typename CudaType<decltype(w_zero)>::type;
    ForwardArgs<x_t, w_t> args = {};
    args.x = static_cast<const x_t*>(x.const_data_ptr());
    args.residual = cuda_data_or_null<const x_t>(residual);
    args.weight = cuda_data_or_null<const w_t>(weight);
    args.y = y.mutable_data_ptr();
    args.sum = cuda_data_or_null<x_t>(sum);
    args.x_layout = row_layout(x);
    if (residual.defined()) args.residual_layout = row_layout(residual);
    args.H = x.size(-1);
    args.rows = x.numel() / args.H;
    args.eps = options.eps;
    args.weight_offset = options.weight_offset;
    args.round_before_weight = options.round_before_weight;
    args.output_type = output_type(x, y);

    constexpr int kChunk = kChunkElements<x_t>;
    const auto config = forward_config(args.H, kChunk, device_limits());
    at::Tensor partial_sums;
    if (config.kind == ForwardKind::two_launches) {
      partial_sums = at::empty({args.rows, config.slices}, x.options().dtype(at::kDouble));
      args.partial_sums = partial_sums.mutable_data_ptr<double>();
    }
    const bool aligned = rows_aligned(kChunk, x, residual, weight, y, sum);
    C10_CUDA_CHECK(launch_forward(args, config, aligned, c10::cuda::getCurrentCUDAStream()));
  });
}

}  // namespace my_ops
