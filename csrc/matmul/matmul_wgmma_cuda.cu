// matmul on Hopper's tensor cores: chooses a tile and a split of K, splits both operands into
// planes and launches the kernels of wgmma_gemm.cuh.
#include "common/launch.cuh"
#include "common/vec.cuh"
#include "matmul/matmul_tf32.h"
#include "matmul/matmul_wgmma.h"
#include "matmul/tf32_plan.h"
#include "matmul/wgmma_gemm.cuh"
#include "matmul/wgmma_output.cuh"
#include "matmul/wgmma_plan.h"
#include "matmul/wgmma_split.cuh"

namespace my_ops {
namespace {

using namespace tensor_core;

// The tiles of each precision, with the TFLOP/s of narrow products that they reach on an H200.
//
// Wide tiles read the fewest bytes for a product; narrow ones leave the fewest SMs idle where C is
// small. bf16x6 promotes every 32 of K (see wgmma_gemm.cuh): every 64 would be as fast, but doubles
// the error on N(0,1) and makes it larger than FP32's on uniform(0,1). fp16x3, with half the
// products in a stage, promotes every 128: 8 % faster than every 64, with an error of 4.6e-7 where
// FP32 has 1.15e-6 (K = 4096).
struct Bf16x6 {
  using Wide = Tile<Element::bf16, 6, 192, 64, 3, 2, 1>;
  using Narrow = Tile<Element::bf16, 6, 128, 64, 4, 2, 1>;
  static constexpr double kRateWide = 850, kRateNarrow = 790;
};

struct Fp16x3 {
  using Wide = Tile<Element::fp16, 3, 192, 64, 5, 2, 4>;
  using Narrow = Tile<Element::fp16, 3, 128, 64, 6, 2, 4>;
  static constexpr double kRateWide = 660, kRateNarrow = 630;
};

// TF32 has the significand of fp16, at half its speed. So operands of large products, for which the
// split pays (see tf32_plan.h), become scaled fp16 where their range allows: 460 TFLOP/s at
// n = 4096, where TF32 without a split pass reaches 400. Where it does not, AnyRange multiplies
// them in TF32, with one accumulator: its drift is a tenth of TF32's rounding.
struct Tf32 {
  using Wide = Tile<Element::fp16, 1, 192, 128, 5, 2, 4>;
  using Narrow = Tile<Element::fp16, 1, 128, 128, 6, 2, 4>;
  static constexpr double kRateWide = 690, kRateNarrow = 590;
  using AnyRange = Tile<Element::tf32, 1, 128, 128, 6, 2, 0>;
};

template <class Tile>
constexpr WgmmaShape shape_of(double rate) {
  return {Tile::kCluster * Tile::kRows, Tile::kCols, Tile::kDepth * Tile::kUnit, rate};
}

template <class Mode>
WgmmaPlan plan(int64_t M, int64_t N, int64_t K) {
  using Wide = typename Mode::Wide;
  using Narrow = typename Mode::Narrow;
  constexpr WgmmaShape kShapes[] = {shape_of<Wide>(Mode::kRateWide),
                                    shape_of<Narrow>(Mode::kRateNarrow)};
  const int sms = current_device_properties().multiProcessorCount;
  const int plane_bytes = Wide::kPlanes * sm90::kElementBytes<Wide::kElement>;
  return plan_wgmma(kShapes, Wide::kProducts, plane_bytes, M, N, K, sms / Wide::kCluster, sms);
}

// One operand's planes, made of `matrix` [rows, K], and the memory that they lie in.
struct Planes {
  OwnedTensor memory, unscale;
  Source source;
};

template <class Tile>
Planes allocate_planes(const TensorView& matrix, int k_tiles) {
  const int64_t rows = matrix.size(0), groups = ceil_div(rows, kGroupRows);
  Planes planes;
  planes.memory =
      OwnedTensor::empty(Tile::Layout::block_offset(groups, 0, k_tiles, 0), ScalarType::Byte);
  if (Tile::kScaled) {
    planes.unscale =
        OwnedTensor::empty(groups * (k_tiles / Tile::kUnit) * kGroupRows, ScalarType::Float);
  }
  const float* const data = matrix.const_data_ptr<float>();
  const bool vectors = matrix.stride(1) == 1 && matrix.stride(0) % 4 == 0 && aligned_to_vec(data);
  planes.source = {data,
                   matrix.stride(0),
                   matrix.stride(1),
                   rows,
                   matrix.size(1),
                   static_cast<int>(groups),
                   vectors,
                   planes.memory.data_ptr<char>(),
                   planes.unscale.data_ptr<float>()};
  return planes;
}

template <class Tile>
void launch_split(const Sources& sources) {
  const int64_t chunks = int64_t{sources.k_tiles} * (Tile::Layout::kRowBytes / kVecBytes);
  const int64_t groups = int64_t{sources.of[0].groups} + sources.of[1].groups;
  const int64_t blocks =
      ceil_div(chunks, kSplitChunks<typename Tile::Layout, Tile::kUnit>) * groups;
  // What a fallback splits may overlap with the product before it.
  launch_with({1, sources.only_if != nullptr},
              split_kernel<Tile::kElement, typename Tile::Layout, Tile::kUnit>,
              static_cast<uint32_t>(blocks), kSplitThreads, 0, sources);
}

template <class Tile>
void launch_product(const Sources& sources, const WgmmaPlan& plan, const TensorView& C,
                    const int* unfit, bool if_unfit = false) {
  OwnedTensor partial;
  if (plan.cut_tiles > 0) {
    partial = OwnedTensor::empty(
        int64_t{plan.slices} * plan.cut_tiles * Tile::kCluster * Tile::kRows * Tile::kCols,
        ScalarType::Float);
  }
  const Product<FloatOutput> product{sources.of[0].planes,
                                     sources.of[1].planes,
                                     sources.of[0].unscale,
                                     sources.of[1].unscale,
                                     sources.of[0].groups,
                                     sources.of[1].groups,
                                     sources.k_tiles,
                                     plan.row_tiles,
                                     plan.col_tiles,
                                     plan.whole_tiles,
                                     plan.cut_tiles,
                                     plan.slices,
                                     partial.data_ptr<float>(),
                                     unfit,
                                     if_unfit,
                                     {C.mutable_data_ptr<float>(), C.size(0), C.size(1)}};
  const int clusters = current_device_properties().multiProcessorCount / Tile::kCluster;
  const int works = plan.whole_tiles + plan.cut_tiles * plan.slices;
  constexpr LaunchOptions kOverlapping{1, true};
  launch_with(kOverlapping, matmul_wgmma_kernel<Tile, FloatOutput>,
              std::min(works, clusters) * Tile::kCluster, Tile::kThreads, Tile::kSharedBytes,
              product);
  if (plan.cut_tiles == 0) return;
  launch_with(kOverlapping, sum_slices_kernel<Tile, FloatOutput>,
              plan.cut_tiles * Tile::kCluster * (Tile::kAccumulators / 4), 128 * Tile::kConsumers,
              0, product);
}

template <class Tile>
int padded_k_tiles(int64_t K) {
  return static_cast<int>(ceil_div(K, Tile::kDepth * Tile::kUnit) * Tile::kUnit);
}

template <class Mode>
bool multiply(const TensorView& A, const TensorView& B, const TensorView& C,
              const WgmmaPlan& chosen, OwnedTensor& unfit) {
  using Wide = typename Mode::Wide;
  using Narrow = typename Mode::Narrow;
  if (chosen.shape < 0 || !runs_wgmma(matmul_wgmma_kernel<Wide, FloatOutput>, Wide::kThreads)) {
    return false;
  }
  unfit = OwnedTensor::empty(1, ScalarType::Int);
  MY_OPS_CUDA_CHECK(cudaMemsetAsync(unfit.data_ptr<int>(), 0, sizeof(int), current_stream()));
  const int k_tiles = padded_k_tiles<Wide>(A.size(1));
  const Planes a = allocate_planes<Wide>(A, k_tiles), b = allocate_planes<Wide>(B.t(), k_tiles);
  const Sources sources{{a.source, b.source}, k_tiles, unfit.data_ptr<int>(), nullptr};
  launch_split<Wide>(sources);
  if (chosen.shape == 0) {
    launch_product<Wide>(sources, chosen, C, unfit.data_ptr<int>());
  } else {
    launch_product<Narrow>(sources, chosen, C, unfit.data_ptr<int>());
  }
  return true;
}

// The TF32 product of operands that are unfit for scaled fp16.
void multiply_any_range(const TensorView& A, const TensorView& B, const TensorView& C,
                        const int* unfit) {
  using Tile = Tf32::AnyRange;
  const int k_tiles = padded_k_tiles<Tile>(A.size(1));
  const Planes a = allocate_planes<Tile>(A, k_tiles), b = allocate_planes<Tile>(B.t(), k_tiles);
  const Sources sources{{a.source, b.source}, k_tiles, nullptr, unfit};
  launch_split<Tile>(sources);
  const WgmmaShape shape = shape_of<Tile>(0);
  const auto row_tiles = static_cast<int>(ceil_div(C.size(0), shape.rows));
  const auto col_tiles = static_cast<int>(ceil_div(C.size(1), shape.cols));
  const WgmmaPlan whole{0, row_tiles, col_tiles, row_tiles * col_tiles, 0, 1, 0};
  launch_product<Tile>(sources, whole, C, unfit, true);
}

// As they lie in memory where that is the faster way by estimate, else by planes.
bool multiply_tf32(const TensorView& A, const TensorView& B, const TensorView& C) {
  const int64_t M = A.size(0), N = B.size(1), K = A.size(1);
  const WgmmaPlan by_planes = plan<Tf32>(M, N, K);
  const Tf32Plan direct = plan_tf32(M, N, K, current_device_properties().multiProcessorCount);
  if (direct.shape >= 0 && direct.microseconds < by_planes.microseconds &&
      matmul_tf32(A, B, C, direct)) {
    return true;
  }
  OwnedTensor unfit;
  if (!multiply<Tf32>(A, B, C, by_planes, unfit)) return false;
  multiply_any_range(A, B, C, unfit.data_ptr<int>());
  return true;
}

}  // namespace

bool matmul_wgmma(const TensorView& A, const TensorView& B, const TensorView& C,
                  std::string_view precision, OwnedTensor& unfit) {
  const int64_t M = A.size(0), N = B.size(1), K = A.size(1);
  if (precision == "bf16x6") return multiply<Bf16x6>(A, B, C, plan<Bf16x6>(M, N, K), unfit);
  if (precision == "fp16x3") return multiply<Fp16x3>(A, B, C, plan<Fp16x3>(M, N, K), unfit);
  return precision == "tf32" && multiply_tf32(A, B, C);
}

}  // namespace my_ops
