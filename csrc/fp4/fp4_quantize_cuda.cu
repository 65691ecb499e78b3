// fp4_quantize, fp4_amax and fp4_hadamard on CUDA: choice of the kernel, launch. The kernels are in
// fp4_quantize.cuh, fp4_quantize_columns.cuh, fp4_amax.cuh and fp4_hadamard.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/launch.cuh"
#include "fp4/fp4.h"
#include "fp4/fp4_amax.cuh"
#include "fp4/fp4_cuda.cuh"
#include "fp4/fp4_hadamard.cuh"
#include "fp4/fp4_quantize.cuh"
#include "fp4/fp4_quantize_columns.cuh"

namespace my_ops {
namespace {

template <typename scalar_t>
void amax_cuda(const scalar_t* x, const Fp4Rows& rows, uint32_t* amax) {
  const auto shape = fp4_collapse(rows, 1);
  const bool aligned = rows_are_aligned(x, shape);
  if (fp4_amax_is_small(shape, sizeof(scalar_t)) &&
      runs_clusters(fp4_small_amax_kernel<true, scalar_t>)) {
    with_flag(aligned, [&](auto is_aligned) {
      launch_with({kSmallAmaxBlocks}, fp4_small_amax_kernel<is_aligned, scalar_t>, kSmallAmaxBlocks,
                  fp4_small_amax_threads(shape, sizeof(scalar_t)), 0, x, amax, shape);
    });
    return;
  }
  MY_OPS_CUDA_CHECK(cudaMemsetAsync(amax, 0, sizeof *amax, current_stream()));
  const auto [grid, block] = fp4_amax_launch(shape, kVecElements<scalar_t>, kAmaxPacks);
  with_flag(aligned, [&, grid = grid, block = block](auto is_aligned) {
    launch(fp4_amax_kernel<is_aligned, false, scalar_t>, grid, block, 0, x, amax, shape);
  });
}

template <Fp4Format kFormat, bool kStochastic, typename scalar_t>
void quantize_rows(const scalar_t* x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                   const Fp4Amax& amax, bool overlapping, uint8_t* packed, uint8_t* scale) {
  const auto shape = options.tiles ? rows : fp4_collapse(rows, fp4_block_size(kFormat));
  const bool aligned = rows_are_aligned(x, shape, kFp4Chunk);
  const auto config =
      fp4_quantize_launch(shape, kFp4Chunks<scalar_t>, options.tiles, aligned && !kStochastic);
  const auto launch_kernel = [&](auto walk, auto is_aligned) {
    launch_with({1, overlapping},
                fp4_quantize_kernel<kFormat, kStochastic, walk, is_aligned, scalar_t>,
                config.launch.grid, config.launch.block, 0, x, packed, scale, shape, amax,
                options.scale_mode, options.seed);
  };
  const auto launch_walk = [&](auto walk) {
    with_flag(aligned, [&](auto is_aligned) { launch_kernel(walk, is_aligned); });
  };
  if (config.walk == Fp4Walk::along) {
    launch_walk(std::integral_constant<Fp4Walk, Fp4Walk::along>{});
  } else if (config.walk == Fp4Walk::down) {
    launch_walk(std::integral_constant<Fp4Walk, Fp4Walk::down>{});
  } else if (config.walk == Fp4Walk::alone) {
    if constexpr (!kStochastic) {
      launch_kernel(std::integral_constant<Fp4Walk, Fp4Walk::alone>{}, std::true_type{});
    }
  } else if constexpr (kFormat == Fp4Format::nvfp4) {
    launch_walk(std::integral_constant<Fp4Walk, Fp4Walk::tiles>{});
  }
}

template <Fp4Format kFormat, bool kStochastic, typename scalar_t>
void quantize_columns(const scalar_t* x, const Fp4Rows& shape, const Fp4QuantizeOptions& options,
                      uint8_t* packed, uint8_t* scale) {
  constexpr int kColumns = kColumnsOfThread<scalar_t>;
  const auto [grid, block] = fp4_columns_launch(shape, kColumns);
  const bool whole_words = reinterpret_cast<std::uintptr_t>(x) % sizeof(uint32_t) == 0 &&
                           shape.rows % kColumns == 0 && shape.k_stride % kColumns == 0;
  with_flag(whole_words, [&, grid = grid, block = block](auto aligned) {
    launch(fp4_quantize_columns_kernel<kFormat, kStochastic, aligned, scalar_t>, grid, block, 0, x,
           packed, scale, shape, options.amax, options.scale_mode, options.seed);
  });
}

}  // namespace

void fp4_amax_cuda(const TensorView& x, const Fp4Rows& rows, const TensorView& amax) {
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    amax_cuda(cuda_pointer(x.const_data_ptr<scalar_t>()), rows,
              static_cast<uint32_t*>(amax.mutable_data_ptr()));
  });
}

void fp4_hadamard_cuda(const TensorView& x, const Fp4Rows& rows, const TensorView& y) {
  const auto shape = fp4_collapse(rows, kHadamardPoints);
  const auto [grid, block] = fp4_hadamard_launch(shape);
  dispatch(Fp4Floats(), x.scalar_type(), [&, grid = grid, block = block](auto zero) {
    const auto* x_data = cuda_pointer(x.const_data_ptr<decltype(zero)>());
    launch(fp4_hadamard_kernel<std::remove_const_t<std::remove_pointer_t<decltype(x_data)>>>, grid,
           block, 0, x_data, y.mutable_data_ptr<float>(), shape);
  });
}

void fp4_quantize_cuda(const TensorView& x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                       const TensorView& packed, const TensorView& scale) {
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = cuda_pointer(x.const_data_ptr<scalar_t>());
    auto* packed_data = packed.mutable_data_ptr<uint8_t>();
    auto* scale_data = scale.mutable_data_ptr<uint8_t>();
    with_format(options.format, [&](auto format) {
      with_flag(options.stochastic, [&](auto stochastic) {
        if (rows.k_stride == 1) {
          quantize_rows<format, stochastic>(x_data, rows, options, Fp4Amax{options.amax}, false,
                                            packed_data, scale_data);
        } else {
          quantize_columns<format, stochastic>(x_data, rows, options, packed_data, scale_data);
        }
      });
    });
  });
}

bool fp4_quantize_small_cuda(const TensorView& x, const Fp4Rows& rows,
                             const Fp4QuantizeOptions& options, const TensorView& packed,
                             const TensorView& scale, const TensorView& amax) {
  if (rows.k_stride != 1) return false;
  const auto shape = fp4_collapse(rows, 1);
  const auto [grid, block] =
      fp4_amax_launch(shape, static_cast<int>(kVecBytes / x.element_size()), kAmaxPartPacks);
  const auto parts = static_cast<int64_t>(grid.x) * grid.y;
  if (parts > kMaxAmaxParts) return false;
  const auto of_parts = OwnedTensor::empty(parts, ScalarType::Int);
  dispatch(Fp4Floats(), x.scalar_type(), [&, grid = grid, block = block](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = cuda_pointer(x.const_data_ptr<scalar_t>());
    using cuda_t = std::remove_const_t<std::remove_pointer_t<decltype(x_data)>>;
    const bool overlapping = runs_clusters(fp4_amax_kernel<true, true, cuda_t>);
    with_flag(rows_are_aligned(x_data, shape), [&](auto aligned) {
      launch_with({1, overlapping}, fp4_amax_kernel<aligned, true, cuda_t>, grid, block, 0, x_data,
                  of_parts.data_ptr<uint32_t>(), shape);
    });
    const Fp4Amax found{of_parts.data_ptr<float>(), static_cast<int>(parts),
                        amax.mutable_data_ptr<float>()};
    with_flag(options.stochastic, [&](auto stochastic) {
      quantize_rows<Fp4Format::nvfp4, stochastic>(x_data, rows, options, found, overlapping,
                                                  packed.mutable_data_ptr<uint8_t>(),
                                                  scale.mutable_data_ptr<uint8_t>());
    });
  });
  return true;
}

}  // namespace my_ops
