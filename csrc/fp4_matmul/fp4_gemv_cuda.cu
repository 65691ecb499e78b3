// fp4_linear for one row of x: launches the gemv kernel.
#include "common/launch.cuh"
#include "fp4_matmul/fp4_gemv.h"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/gemv_kernel.cuh"
#include "fp4_matmul/gemv_slice_kernel.cuh"

namespace my_ops {
namespace {

template <typename Kernel>
void launch_kernel(Kernel kernel, const GemvArguments& args) {
  launch_with({1, true}, kernel, args.plan.blocks, kGemvWarps * 32,
              static_cast<size_t>(args.plan.shared_bytes), args);
}

template <typename scalar_t, Fp4Format kFormat, bool kFlat>
void launch_rows(const GemvArguments& args) {
  const auto with = [&](auto kernel) { launch_kernel(kernel, args); };
  args.plan.small_tail ? with(fp4_gemv_kernel<GemvTile<scalar_t, kFormat, kFlat, true>>)
                       : with(fp4_gemv_kernel<GemvTile<scalar_t, kFormat, kFlat, false>>);
}

template <typename scalar_t, Fp4Format kFormat>
void launch_gemv(const GemvArguments& args) {
  if (args.plan.own_slices) {
    using Tile = GemvTile<scalar_t, kFormat, true, true>;
    return args.out.K % kGemvDepth == 0 ? launch_kernel(fp4_gemv_slice_kernel<Tile, true>, args)
                                        : launch_kernel(fp4_gemv_slice_kernel<Tile, false>, args);
  }
  gemv_is_flat(args.out.K) ? launch_rows<scalar_t, kFormat, true>(args)
                           : launch_rows<scalar_t, kFormat, false>(args);
}

}  // namespace

bool fp4_gemv(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
              const TensorView& y) {
  const auto* const codes = b.packed.const_data_ptr<uint8_t>();
  const auto* const scales = b.scale.const_data_ptr<uint8_t>();
  const bool flat = gemv_is_flat(b.depth());
  if (!b.contracts_cols || x.size(0) != 1 || x.scalar_type() == ScalarType::Float ||
      x.stride(1) != 1 || !starts_at_multiple_of(x.const_data_ptr(), 0, 16) ||
      !starts_at_multiple_of(codes, 0, flat ? 8 : 16) ||
      !starts_at_multiple_of(scales, 0, flat ? 1 : (b.depth() % kGemvDepth == 0 ? 4 : 2))) {
    return false;
  }
  const cudaDeviceProp& device = current_device_properties();
  using AnyTile = GemvTile<__half, Fp4Format::nvfp4, true, true>;
  if (!runs_wgmma(fp4_gemv_kernel<AnyTile>, kGemvWarps * 32)) return false;
  const GemvArguments args{
      codes,
      scales,
      b.amax.const_data_ptr<float>(),
      x.const_data_ptr(),
      product_output(y, b.depth(), bias),
      plan_gemv(y.size(1), b.depth(), fp4_block_size(b.format),
                static_cast<int64_t>(device.sharedMemPerBlockOptin), device.multiProcessorCount)};
  if (args.plan.blocks == 0) return false;
  with_types(x, b.format, [&](auto element, auto format) {
    launch_gemv<decltype(element), decltype(format)::value>(args);
  });
  return true;
}

}  // namespace my_ops
