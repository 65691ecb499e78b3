// fp4_linear for few rows of x: launches the stream kernel.
#include "common/launch.cuh"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_stream.h"
#include "fp4_matmul/stream_kernel.cuh"

namespace my_ops {
namespace {

template <typename scalar_t, Fp4Format kFormat>
void launch_stream(const StreamArguments& args, const StreamPlan& plan) {
  const auto bytes = stream_shared_bytes(args.out.M, args.out.K, plan.splits);
  launch_with({static_cast<unsigned>(plan.splits), false},
              fp4_stream_kernel<StreamTile<scalar_t, kFormat>>, plan.blocks, kStreamWarps * 32,
              bytes, args);
}

}  // namespace

bool fp4_stream(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                const TensorView& y) {
  const auto* const codes = b.packed.const_data_ptr<uint8_t>();
  const auto* const scales = b.scale.const_data_ptr<uint8_t>();
  if (!b.contracts_cols || x.scalar_type() == ScalarType::Float || x.stride(1) != 1 ||
      !starts_at_multiple_of(codes, 0, 16) || !starts_at_multiple_of(scales, 0, 2)) {
    return false;
  }
  const cudaDeviceProp& device = current_device_properties();
  using AnyTile = StreamTile<__half, Fp4Format::nvfp4>;
  const bool clusters =
      device.major >= 9 &&
      compiled_for_clusters(reinterpret_cast<const void*>(fp4_stream_kernel<AnyTile>));
  const StreamPlan plan = plan_stream(x.size(0), y.size(1), b.depth(),
                                      static_cast<int64_t>(device.sharedMemPerBlockOptin), clusters,
                                      device.multiProcessorCount);
  if (plan.team_warps == 0) return false;
  const StreamArguments args{codes,
                             scales,
                             b.amax.const_data_ptr<float>(),
                             x.const_data_ptr(),
                             x.stride(0),
                             starts_at_multiple_of(x.const_data_ptr(), x.stride(0) * 2, 16),
                             product_output(y, b.depth(), bias),
                             stream_steps(b.depth(), plan.splits),
                             plan.team_warps,
                             plan.splits};
  const bool nvfp4 = b.format == Fp4Format::nvfp4;
  if (x.scalar_type() == ScalarType::Half) {
    nvfp4 ? launch_stream<__half, Fp4Format::nvfp4>(args, plan)
          : launch_stream<__half, Fp4Format::mxfp4>(args, plan);
  } else {
    nvfp4 ? launch_stream<__nv_bfloat16, Fp4Format::nvfp4>(args, plan)
          : launch_stream<__nv_bfloat16, Fp4Format::mxfp4>(args, plan);
  }
  return true;
}

}  // namespace my_ops
