// rmsnorm's forward on CUDA: from tensors to the arguments of a kernel. Which one a width gets,
// with x in registers, staged in shared memory or in tiles: forward_config.cuh.
#include "common/cuda_types.cuh"
#include "rmsnorm/forward_launch.cuh"
#include "rmsnorm/rmsnorm.h"
#include "rmsnorm/rmsnorm_cuda.cuh"
#include "rmsnorm/rmsnorm_dispatch.h"

namespace my_ops {
namespace {

OutputType output_type(const TensorView& x, const TensorView& y) {
  if (y.scalar_type() == x.scalar_type()) return OutputType::like_x;
  if (y.scalar_type() == ScalarType::Float) return OutputType::float32;
  return y.scalar_type() == ScalarType::Half ? OutputType::float16 : OutputType::bfloat16;
}

}  // namespace

void rmsnorm_forward_cuda(const TensorView& x, const TensorView& residual, const TensorView& weight,
                          const RMSNormOptions& options, const TensorView& y,
                          const TensorView& sum) {
  rmsnorm_dispatch(x, weight, [&](auto x_zero, auto w_zero) {
    using x_t = typename CudaType<decltype(x_zero)>::type;
    using w_t = typename CudaType<decltype(w_zero)>::type;
    ForwardArgs<x_t, w_t> args = {};
    args.x = x.const_data_ptr<x_t>();
    args.residual = residual.const_data_ptr<x_t>();
    args.weight = weight.const_data_ptr<w_t>();
    args.y = y.mutable_data_ptr();
    args.sum = sum.mutable_data_ptr<x_t>();
    args.x_layout = row_layout(x);
    if (residual.defined()) args.residual_layout = row_layout(residual);
    args.H = x.size(-1);
    args.rows = x.numel() / args.H;
    args.eps = options.eps;
    args.weight_offset = options.weight_offset;
    args.round_before_weight = options.round_before_weight;
    args.output_type = output_type(x, y);

    constexpr int kChunk = kChunkElements<x_t>;
    constexpr auto kElements = Access::elements;
    const DeviceLimits limits = device_limits(rmsnorm_forward_kernel<x_t, w_t, 0, 24, kElements>);
    auto config = forward_config(args.H, row_packs<x_t>(args.H), limits);
    config.overlaps = limits.max_cluster_blocks > 1;  // both came with compute capability 9.0
    OwnedTensor partial_sums;
    if (const int64_t sums = forward_sums<x_t>(args.rows, args.H, config)) {
      partial_sums = OwnedTensor::empty(sums, ScalarType::Double);
      args.partial_sums = partial_sums.data_ptr<double>();
    }
    const bool aligned = rows_aligned(kChunk, x, residual, weight, y, sum);
    MY_OPS_CUDA_CHECK(launch_forward(args, config, aligned, current_stream()));
  });
}

}  // namespace my_ops
