// Launches the kernel that widens a packed matrix to 16 bits.
#pragma once

#include "common/launch.cuh"
#include "fp4_matmul/fp4_product.h"
#include "fp4_matmul/widen_kernel.cuh"

namespace my_ops {

// Rows of whole words of eight codes, which the kernel counts in 32 bits.
inline bool can_widen(const Fp4FactorView& factor) {
  return factor.cols % 8 == 0 && factor.rows * factor.cols < int64_t{1} << 34;
}

// `beside`: from when the kernel in front lets it start.
template <typename scalar_t>
void widen(const Fp4FactorView& factor, scalar_t* wide, bool beside = false) {
  const WidenArguments args{factor.packed.const_data_ptr<uint32_t>(),
                            factor.scale.const_data_ptr<uint8_t>(),
                            factor.amax.const_data_ptr<float>(),
                            reinterpret_cast<uint4*>(wide),
                            static_cast<uint32_t>(factor.rows * (factor.cols / 8)),
                            static_cast<uint32_t>(factor.cols / 8),
                            static_cast<uint32_t>(factor.scale.size(1))};
  launch_with({1, beside},
              factor.format == Fp4Format::nvfp4 ? widen_kernel<scalar_t, Fp4Format::nvfp4>
                                                : widen_kernel<scalar_t, Fp4Format::mxfp4>,
              ceil_div(args.words, uint32_t{kWidenThreads * kWidenWords}), kWidenThreads, 0, args);
}

}  // namespace my_ops
