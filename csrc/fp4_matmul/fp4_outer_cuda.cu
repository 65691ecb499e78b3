// Launches the outer kernel: few rows of x, a factor stored along the other dimension.
#include "common/launch.cuh"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_outer.h"
#include "fp4_matmul/outer_kernel.cuh"

namespace my_ops {
namespace {

template <typename Tile>
void launch_tile(const OuterArguments& args, const OuterPlan& plan) {
  const dim3 grid(static_cast<unsigned>(args.out.N / kOuterCols * plan.splits),
                  static_cast<unsigned>(ceil_div(args.out.M, int64_t{Tile::kTokens})));
  launch_with({static_cast<unsigned>(plan.splits), true}, fp4_outer_kernel<Tile>, grid,
              Tile::kWarps * 32, Tile::kSharedBytes, args, plan.splits);
}

template <typename scalar_t, Fp4Format kFormat>
void launch_outer(const OuterArguments& args, const OuterPlan& plan) {
  if (plan.tokens == 8) return launch_tile<OuterTile<scalar_t, kFormat, 8>>(args, plan);
  if (plan.tokens == 16) return launch_tile<OuterTile<scalar_t, kFormat, 16>>(args, plan);
  launch_tile<OuterTile<scalar_t, kFormat, 32>>(args, plan);
}

}  // namespace

bool fp4_outer(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
               const TensorView& y) {
  const int64_t x_stride = x.size(0) == 1 ? 0 : x.stride(0);
  if (b.contracts_cols || x.scalar_type() == ScalarType::Float || may_misfit(x, b.format) ||
      x.stride(1) != 1 || !starts_at_multiple_of(x.const_data_ptr(), x_stride * 2, 16) ||
      !starts_at_multiple_of(b.packed.const_data_ptr(), 0, 16) ||
      !starts_at_multiple_of(b.scale.const_data_ptr(), 0, 8)) {
    return false;
  }
  using AnyTile = OuterTile<__half, Fp4Format::nvfp4, 8>;
  if (!runs_clusters(fp4_outer_kernel<AnyTile>)) return false;
  const OuterPlan plan =
      plan_outer(y.size(0), y.size(1), b.depth(), current_device_properties().multiProcessorCount);
  if (plan.tokens == 0) return false;
  const OuterArguments args{b.packed.const_data_ptr<uint8_t>(),
                            b.scale.const_data_ptr<uint8_t>(),
                            b.amax.const_data_ptr<float>(),
                            x.const_data_ptr(),
                            x_stride,
                            product_output(y, b.depth(), bias)};
  with_types(x, b.format, [&](auto element, auto format) {
    using scalar_t = decltype(element);
    constexpr Fp4Format kFormat = decltype(format)::value;
    if constexpr (!std::is_same_v<scalar_t, __half> || kFormat == Fp4Format::nvfp4) {
      launch_outer<scalar_t, kFormat>(args, plan);
    }
  });
  return true;
}

}  // namespace my_ops
