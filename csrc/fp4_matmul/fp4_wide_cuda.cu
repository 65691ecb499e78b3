// fp4_matmul for a factor that is stored along the dimension that is not contracted, on Hopper's
// tensor cores: the gradients. Chooses a tile, describes x to the copy engine, launches.
#include "common/launch.cuh"
#include "common/sm90_tensor_map.h"
#include "fp4_matmul/find_misfits.cuh"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_wide.h"
#include "fp4_matmul/fp4_widen.cuh"
#include "fp4_matmul/wide_kernel.cuh"
#include "fp4_matmul/wide_plan.h"

namespace my_ops {
namespace {

template <typename scalar_t, Major kX>
struct WideTiles {
  using Wide = WideTile<scalar_t, 256, 4, kX>;
  using Narrow = WideTile<scalar_t, 128, 6, kX>;
};

// False where the copy engine cannot be told how an operand lies.
template <typename Tile>
bool launch_tile(WideArguments& args, const Fp4FactorView& b, const TensorView& stored_x,
                 int clusters) {
  using scalar_t = typename Tile::scalar_t;
  const auto wide = OwnedTensor::empty(b.rows * b.cols * 2, ScalarType::Byte);
  auto* const data = wide.view().mutable_data_ptr<scalar_t>();
  if (!encode_tensor_map(args.factor, data, b.rows, b.cols, b.cols, kWideDepth) ||
      !encode_tensor_map(args.x, stored_x.const_data_ptr(), stored_x.size(0), stored_x.size(1),
                         stored_x.stride(0),
                         Tile::kX == Major::depth ? Tile::kBoxCols : kWideDepth)) {
    return false;
  }
  widen(b, data);
  launch_with({1, true}, fp4_wide_kernel<Tile>, clusters * kWideCluster, Tile::kThreads,
              Tile::kSharedBytes, args);
  return true;
}

template <typename scalar_t>
bool launch_wide(WideArguments& args, const Fp4FactorView& b, const TensorView& x,
                 const WidePlan& plan) {
  using Depth = WideTiles<scalar_t, Major::depth>;
  using Outer = WideTiles<scalar_t, Major::outer>;
  if (x.stride(1) == 1) {
    return plan.cols == 256 ? launch_tile<typename Depth::Wide>(args, b, x, plan.clusters)
                            : launch_tile<typename Depth::Narrow>(args, b, x, plan.clusters);
  }
  return plan.cols == 256 ? launch_tile<typename Outer::Wide>(args, b, x.t(), plan.clusters)
                          : launch_tile<typename Outer::Narrow>(args, b, x.t(), plan.clusters);
}

// Whether all results lie in whole vectors of 16 bytes along the dense dimension.
bool has_vectors(const ProductOutput& out) {
  const bool along_n = out.col_stride == 1;
  return out.type != DenseType::float32 && (along_n || out.row_stride == 1) &&
         (along_n ? out.N : out.M) % 8 == 0 &&
         starts_at_multiple_of(out.data, (along_n ? out.row_stride : out.col_stride) * 2, 16);
}

}  // namespace

bool fp4_wide(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
              const TensorView& y, OwnedTensor& misfits) {
  const TensorView stored_x = x.stride(1) == 1 ? x : x.t();
  const bool half = x.scalar_type() == ScalarType::Half;
  const bool may_misfit = half && b.format == Fp4Format::mxfp4;
  const bool fits = x.scalar_type() != ScalarType::Float && stored_x.stride(1) == 1 &&
                    stored_x.stride(0) >= stored_x.size(1) &&
                    starts_at_multiple_of(x.const_data_ptr(), stored_x.stride(0) * 2, 16) &&
                    !b.contracts_cols && can_widen(b) && (!may_misfit || b.cols % 32 == 0) &&
                    starts_at_multiple_of(b.packed.const_data_ptr(), 0, 16);
  if (!fits) return false;
  using AnyTile = WideTiles<__half, Major::depth>::Wide;
  if (!runs_wgmma(fp4_wide_kernel<AnyTile>, AnyTile::kThreads) || tensor_map_encoder() == nullptr) {
    return false;
  }
  const WidePlan plan =
      plan_wide(y.size(1), y.size(0), b.depth(), current_device_properties().multiProcessorCount);
  if (plan.cols == 0) return false;

  WideArguments args{};
  args.amax = b.amax.const_data_ptr<float>();
  args.is_nvfp4 = b.format == Fp4Format::nvfp4;
  args.out = product_output(y, b.depth(), bias);
  args.vectors = has_vectors(args.out);
  args.steps = static_cast<int>(ceil_div(b.depth(), int64_t{kWideDepth}));
  args.row_tiles = plan.row_tiles;
  args.col_tiles = plan.col_tiles;
  OwnedTensor found;
  if (may_misfit) {
    found = OwnedTensor::empty(kMisfitBlocks, ScalarType::Int);
    args.misfits = found.data_ptr<int>();
    launch(find_misfits_kernel, kMisfitBlocks, kMisfitThreads, 0,
           b.packed.const_data_ptr<uint8_t>(), b.scale.const_data_ptr<uint8_t>(), b.scale.numel(),
           found.data_ptr<int>());
  }
  const bool done =
      half ? launch_wide<__half>(args, b, x, plan) : launch_wide<__nv_bfloat16>(args, b, x, plan);
  if (done) misfits = std::move(found);
  return done;
}

}  // namespace my_ops
