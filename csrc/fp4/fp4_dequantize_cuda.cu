// fp4_dequantize on CUDA: choice of the kernel, launch. The kernel is in fp4_dequantize.cuh.
#include "fp4/fp4_dequantize.cuh"

#include "common/launch.cuh"
#include "fp4/fp4.h"
#include "fp4/fp4_cuda.cuh"

namespace my_ops {
namespace {

template <Fp4Format kFormat, typename scalar_t>
void dequantize_cuda(const uint8_t* packed, const uint8_t* scale, const float* amax,
                     const Fp4Rows& rows, scalar_t* y) {
  const auto shape = fp4_collapse(rows, fp4_block_size(kFormat));
  const auto [grid, block] = fp4_launch(shape, kVecElements<scalar_t>, kFp4Packs);
  const bool whole_words = reinterpret_cast<std::uintptr_t>(packed) % sizeof(uint32_t) == 0;
  with_flag(whole_words && rows_are_aligned(y, shape),
            [&, grid = grid, block = block](auto aligned) {
              launch(fp4_dequantize_kernel<kFormat, aligned, scalar_t>, grid, block, 0, packed,
                     scale, amax, y, shape);
            });
}

}  // namespace

void fp4_dequantize_cuda(const TensorView& packed, const TensorView& scale, const float* amax,
                         Fp4Format format, const Fp4Rows& rows, const TensorView& y) {
  dispatch(Fp4Floats(), y.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    with_format(format, [&](auto tag) {
      dequantize_cuda<tag>(packed.const_data_ptr<uint8_t>(), scale.const_data_ptr<uint8_t>(), amax,
                           rows, cuda_pointer(y.mutable_data_ptr<scalar_t>()));
    });
  });
}

}  // namespace my_ops
