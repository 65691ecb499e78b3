// rmsnorm_fp4_quantize on CUDA: launch configuration, launch. The kernel is in fp4_rmsnorm.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/launch.cuh"
#include "fp4/fp4_cuda.cuh"
#include "fp4/fp4_rmsnorm.cuh"
#include "fp4/fp4_rmsnorm.h"

namespace my_ops {
namespace {

// Enough thread blocks to fill the GPU: they walk over the rows and read the weight once.
struct RmsnormFp4Launch {
  dim3 grid;
  dim3 block;
};

RmsnormFp4Launch rmsnorm_fp4_launch(int64_t rows, int64_t chunks, int multiprocessors) {
  const int64_t threads = ceil_div(ceil_div(chunks, kRmsnormFp4Vectors), 32) * 32;
  const int64_t blocks = kRmsnormFp4Threads * kRmsnormFp4Blocks / threads * multiprocessors;
  return {dim3(static_cast<unsigned>(rows < blocks ? rows : blocks)),
          dim3(static_cast<unsigned>(threads))};
}

template <Fp4Format kFormat, typename x_t, typename w_t>
void quantize(const RmsnormFp4Args<x_t, w_t>& args) {
  const auto [grid, block] = rmsnorm_fp4_launch(args.rows, args.H / kChunkElements<x_t>,
                                                current_device_properties().multiProcessorCount);
  launch(rmsnorm_fp4_quantize_kernel<kFormat, x_t, w_t>, grid, block, 0, args);
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
    const int64_t chunks = rows.K / kChunkElements<x_t>;
    const void* w_data = weight.const_data_ptr();
    fits = chunks >= kRmsnormFp4MinChunks && chunks <= kRmsnormFp4MaxChunks &&
           rows_are_aligned(x_data, rows) &&
           reinterpret_cast<std::uintptr_t>(w_data) % (2 * kChunkBytes) == 0;
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
