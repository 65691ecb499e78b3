// fp4_quantize and fp4_amax on CUDA: choice of the kernel, launch. The kernels are in the .cuh
// files.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/launch.cuh"
#include "fp4/fp4.h"
#include "fp4/fp4_amax.cuh"
#include "fp4/fp4_cuda.cuh"
#include "fp4/fp4_quantize.cuh"

namespace my_ops {
namespace {

template <typename scalar_t>
void amax_cuda(const scalar_t* x, const Fp4Rows& rows, uint32_t* amax) {
  const auto shape = fp4_collapse(rows, 1);
  const auto [grid, block] = fp4_amax_launch(shape, kVecElements<scalar_t>);
  with_flag(rows_are_aligned(x, shape), [&, grid = grid, block = block](auto aligned) {
    launch(fp4_amax_kernel<aligned, scalar_t>, grid, block, 0, x, amax, shape);
  });
}

template <Fp4Format kFormat, typename scalar_t>
void quantize_cuda(const scalar_t* x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                   uint8_t* packed, uint8_t* scale) {
  const auto shape = fp4_collapse(rows, fp4_block_size(kFormat));
  const auto [grid, block] = fp4_launch(shape, kVecElements<scalar_t>);
  with_flag(options.stochastic, [&, grid = grid, block = block](auto stochastic) {
    with_flag(rows_are_aligned(x, shape), [&](auto aligned) {
      launch(fp4_quantize_kernel<kFormat, stochastic, aligned, scalar_t>, grid, block, 0, x, packed,
             scale, shape, options.amax, options.scale_mode, options.seed);
    });
  });
}

}  // namespace

void fp4_amax_cuda(const at::Tensor& x, const Fp4Rows& rows, at::Tensor& amax) {
  FP4_DISPATCH(x.scalar_type(), [&] {
    amax_cuda(cuda_pointer(x.const_data_ptr<scalar_t>()), rows,
              static_cast<uint32_t*>(amax.mutable_data_ptr()));
  });
}

void fp4_quantize_cuda(const at::Tensor& x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                       at::Tensor& packed, at::Tensor& scale) {
  FP4_DISPATCH(x.scalar_type(), [&] {
    with_format(options.format, [&](auto format) {
      quantize_cuda<format>(cuda_pointer(x.const_data_ptr<scalar_t>()), rows, options,
                            packed.mutable_data_ptr<uint8_t>(), scale.mutable_data_ptr<uint8_t>());
    });
  });
}

}  // namespace my_ops
