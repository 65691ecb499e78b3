// fp4_matmul for a factor that is stored along the dimension that is not contracted, on Hopper's
// tensor cores: the gradients. Chooses a tile, describes x to the copy engine, launches.
#include "common/launch.cuh"
#include "common/sm90_tensor_map.h"
#include "fp4_matmul/find_misfits.cuh"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_wide.h"
#include "fp4_matmul/fp4_widen.cuh"
#include "fp4_matmul/outer_plan.h"
#include "fp4_matmul/wide_kernel.cuh"
#include "fp4_matmul/wide_plan.h"

namespace my_ops {
namespace {

template <typename scalar_t, Major kX>
struct WideTiles {
  using Wide = WideTile<scalar_t, 256, 4, kX>;
  using Narrow = WideTile<scalar_t, 128, 6, kX>;
};

// A product of which nothing runs yet.
struct WideProduct {
  WideArguments args;
  WidePlan plan;
  Fp4FactorView b;
  OwnedTensor wide;  // b in the 16 bits of x
  bool half;         // x is of float16
  bool depth;        // x is dense along K
};

template <typename Tile>
void launch_tile(const WideProduct& product) {
  launch_with({1, true}, fp4_wide_kernel<Tile>, product.plan.clusters * kWideCluster,
              Tile::kThreads, Tile::kSharedBytes, product.args);
}

template <typename Tiles>
void launch_tokens(const WideProduct& product) {
  product.plan.tokens == 256 ? launch_tile<typename Tiles::Wide>(product)
                             : launch_tile<typename Tiles::Narrow>(product);
}

template <typename scalar_t>
void run(const WideProduct& product, bool beside) {
  widen(product.b, product.wide.data_ptr<scalar_t>(), beside);
  product.depth ? launch_tokens<WideTiles<scalar_t, Major::depth>>(product)
                : launch_tokens<WideTiles<scalar_t, Major::outer>>(product);
}

// beside: the widening may overlap with the kernel in front.
void run(const WideProduct& product, bool beside = false) {
  product.half ? run<__half>(product, beside) : run<__nv_bfloat16>(product, beside);
}

// Has the copy engine store the results. False where they are not of 16 bits, or do not lie in
// rows of multiples of 16 bytes.
bool map_results(CUtensorMap& map, const ProductOutput& out) {
  const bool along_n = out.col_stride == 1;
  const int64_t rows = along_n ? out.M : out.N, cols = along_n ? out.N : out.M;
  const int64_t row_stride = along_n ? out.row_stride : out.col_stride;
  return out.type != DenseType::float32 && (along_n || out.row_stride == 1) &&
         starts_at_multiple_of(out.data, row_stride * 2, 16) && row_stride >= cols &&
         encode_tensor_map(map, out.data, rows, cols, row_stride, kOutputBox);
}

// False where the kernel is not for this product.
bool prepare(WideProduct& product, const TensorView& x, const Fp4FactorView& b,
             const TensorView& bias, const TensorView& y) {
  const bool depth = x.stride(1) == 1;
  const TensorView stored_x = depth ? x : x.t();
  const bool fits = x.scalar_type() != ScalarType::Float && stored_x.stride(1) == 1 &&
                    stored_x.stride(0) >= stored_x.size(1) &&
                    starts_at_multiple_of(x.const_data_ptr(), stored_x.stride(0) * 2, 16) &&
                    !b.contracts_cols && can_widen(b) &&
                    (!may_misfit(x, b.format) || b.cols % 32 == 0) &&
                    starts_at_multiple_of(b.packed.const_data_ptr(), 0, 16);
  if (!fits) return false;
  using AnyTile = WideTiles<__half, Major::depth>::Wide;
  if (!runs_wgmma(fp4_wide_kernel<AnyTile>, AnyTile::kThreads)) return false;
  const WidePlan plan =
      plan_wide(y.size(0), y.size(1), b.depth(), current_device_properties().multiProcessorCount);
  if (plan.tokens == 0) return false;

  auto wide = OwnedTensor::empty(b.rows * b.cols * 2, ScalarType::Byte);
  WideArguments args{};
  const int x_box = depth ? plan.tokens / kWideCluster : kWideDepth;
  if (!encode_tensor_map(args.factor, wide.data_ptr<void>(), b.rows, b.cols, b.cols, kWideDepth) ||
      !encode_tensor_map(args.x, stored_x.const_data_ptr(), stored_x.size(0), stored_x.size(1),
                         stored_x.stride(0), x_box)) {
    return false;
  }
  args.amax = b.amax.const_data_ptr<float>();
  args.is_nvfp4 = b.format == Fp4Format::nvfp4;
  args.out = product_output(y, b.depth(), bias);
  args.boxes = map_results(args.y, args.out);
  args.steps = static_cast<int>(ceil_div(b.depth(), int64_t{kWideDepth}));
  args.row_tiles = plan.row_tiles;
  args.token_tiles = plan.token_tiles;
  product = {args, plan, b, std::move(wide), x.scalar_type() == ScalarType::Half, depth};
  return true;
}

}  // namespace

bool fp4_wide(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
              const TensorView& y, OwnedTensor& misfits) {
  WideProduct product;
  if (!prepare(product, x, b, bias, y)) return false;
  if (may_misfit(x, b.format)) {
    misfits = OwnedTensor::empty(kMisfitBlocks, ScalarType::Int);
    product.args.misfits = misfits.data_ptr<int>();
    launch(find_misfits_kernel, kMisfitBlocks, kMisfitThreads, 0,
           b.packed.const_data_ptr<uint8_t>(), b.scale.const_data_ptr<uint8_t>(), b.scale.numel(),
           misfits.data_ptr<int>());
  }
  run(product);
  return true;
}

bool fp4_wide_two(const DenseProductView& first, const DenseProductView& second) {
  WideProduct products[2];
  for (const int i : {0, 1}) {
    const auto& [x, b, y] = i == 0 ? first : second;
    if (y.size(0) <= kOuterMaxTokens || may_misfit(x, b.format) ||
        !prepare(products[i], x, b, TensorView(), y)) {
      return false;
    }
  }
  products[0].args.shares_tail = true;
  run(products[0]);
  run(products[1], /*beside=*/true);
  return true;
}

}  // namespace my_ops
