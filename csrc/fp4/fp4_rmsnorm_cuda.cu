// rmsnorm_fp4_quantize on CUDA: launch configuration, launch. The kernel is in fp4_rmsnorm.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/launch.cuh"
#include "fp4/fp4_cuda.cuh"
#include "fp4/fp4_rmsnorm.cuh"
#include "fp4/fp4_rmsnorm.h"

namespace my_ops {
namespace {

// Narrower rows leave most lanes without a piece and are faster in two operators: of 2^28 elements
// of bfloat16, rows of 256 take 564 us, rows of 512 take 296 (H200).
constexpr int kNarrowest = kRmsnormFp4Unit;
template <typename x_t>
constexpr int kWidest = kRmsnormFp4Warps * kRmsnormFp4Unit * (sizeof(x_t) == sizeof(float) ? 2 : 4);

struct RmsnormFp4Launch {
  int pieces;  // of a thread
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
};

int64_t warps_of_row(int64_t H, int pieces) {
  return ceil_div(H, int64_t{kRmsnormFp4Unit} * pieces);
}

// A thread has 4 pieces where rows fill 7/8 of such warps, else 2: with 4 it is 87 % of a copy's
// speed at 8192 columns, with 2 it is 83; but with 4 it is 77 at 5120 columns and 69 at 3072, with
// 2 it is 81 and 82. Threads of float32 have no registers for 4. As many thread blocks as fill the
// GPU: they walk over the rows and read the weight once.
RmsnormFp4Launch rmsnorm_fp4_launch(int64_t rows, int64_t H, bool float32, int multiprocessors) {
  const bool fills_four = 8 * H >= 7 * 4 * kRmsnormFp4Unit * warps_of_row(H, 4);
  const bool fits_two = warps_of_row(H, 2) <= kRmsnormFp4Warps;
  const int pieces = float32 || (fits_two && !fills_four) ? 2 : 4;
  const int64_t warps = warps_of_row(H, pieces);
  const int blocks_of_sm = pieces == 4 ? kRmsnormFp4Blocks<4> : kRmsnormFp4Blocks<2>;
  const int64_t blocks = kRmsnormFp4Warps * blocks_of_sm / warps * multiprocessors;
  return {pieces, dim3(static_cast<unsigned>(rows < blocks ? rows : blocks)),
          dim3(static_cast<unsigned>(32 * warps)),
          static_cast<size_t>(warps * pieces) * kRmsnormFp4Unit * sizeof(float)};
}

template <Fp4Format kFormat, typename x_t, typename w_t>
void quantize(const RmsnormFp4Args<x_t, w_t>& args) {
  const auto config = rmsnorm_fp4_launch(args.rows, args.H, sizeof(x_t) == sizeof(float),
                                         current_device_properties().multiProcessorCount);
  const auto launch_pieces = [&](auto pieces) {
    launch(rmsnorm_fp4_quantize_kernel<kFormat, pieces, x_t, w_t>, config.grid, config.block,
           config.shared_bytes, args);
  };
  if constexpr (sizeof(x_t) < sizeof(float)) {
    if (config.pieces == 4) return launch_pieces(std::integral_constant<int, 4>());
  }
  launch_pieces(std::integral_constant<int, 2>());
}

}  // namespace

bool rmsnorm_fp4_quantize_cuda(const TensorView& x, const Fp4Rows& rows, const TensorView& weight,
                               const RMSNormOptions& norm, const Fp4QuantizeOptions& options,
                               const TensorView& packed, const TensorView& scale) {
  const bool like_x = !weight.defined() || weight.scalar_type() == x.scalar_type();
  bool fits = false;
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = cuda_pointer(x.const_data_ptr<scalar_t>());
    using x_t = std::remove_const_t<std::remove_pointer_t<decltype(x_data)>>;
    const void* w_data = weight.const_data_ptr();
    fits = rows.K >= kNarrowest && rows.K <= kWidest<x_t> && rows_are_aligned(x_data, rows) &&
           aligned_to_vec(static_cast<const uint8_t*>(w_data));
    if (!fits) return;
    const auto run = [&](auto format, auto w_zero) {
      using w_t = decltype(w_zero);
      quantize<format>(RmsnormFp4Args<x_t, w_t>{
          x_data, static_cast<const w_t*>(w_data), packed.mutable_data_ptr<uint8_t>(),
          scale.mutable_data_ptr<uint8_t>(), options.amax, rows.rows, rows.K, rows.row_stride,
          norm.eps, norm.weight_offset, options.scale_mode});
    };
    with_format(options.format,
                [&](auto format) { like_x ? run(format, x_t{}) : run(format, 0.0f); });
  });
  return fits;
}

}  // namespace my_ops
