// A matrix whose rows along M or N are not aligned, copied to rows that are. Device only, needs no
// torch.
#pragma once

#include <cstdint>

#include "common/vec.cuh"

namespace my_ops {
namespace simt {

constexpr int kPadThreads = 256;

// `from`: K rows of `rows` elements, `from_stride` apart. `to`: as many, of whole vectors, filled
// up with zeros. A thread writes one vector.
template <typename scalar_t>
__global__ void __launch_bounds__(kPadThreads)
    pad_rows_kernel(const scalar_t* from, int64_t from_stride, scalar_t* to, int64_t rows,
                    int64_t K) {
  constexpr int kWidth = kVecElements<scalar_t>;
  const int64_t vectors = (rows + kWidth - 1) / kWidth;
  const int64_t i = int64_t{blockIdx.x} * kPadThreads + threadIdx.x;
  if (i >= vectors * K) return;
  const int64_t k = i / vectors, row = i % vectors * kWidth;
  Vec<scalar_t, kWidth> vec;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    vec.elements[e] = row + e < rows ? from[k * from_stride + row + e] : scalar_t{0};
  }
  reinterpret_cast<Vec<scalar_t, kWidth>*>(to)[i] = vec;
}

}  // namespace simt
}  // namespace my_ops
