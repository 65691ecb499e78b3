// fp4_matmul of two dense operands, both of which it quantizes.
#pragma once

#include "common/fp4.h"
#include "common/tensor_view.h"

namespace my_ops {

// An operand in FP4 (fp4/fp4.h); amax is undefined in MXFP4.
struct PairPart {
  TensorView packed, scale, amax;
};

// Whether fp4_pair_cuda is for a [M, K] and b [K, N], on a device that has wgmma: whether this one
// does, fp4_pair_cuda itself finds out. Not where the product is small or the operands have another
// layout or dtype: it is better done in turn then, with the same bits.
bool fp4_pair_fits_cuda(const TensorView& a, const TensorView& b, Fp4Format format);

// y = Aq * Bq, and both parts. False, with nothing written, where the device has no wgmma or the
// fused kernel does not take such operands.
bool fp4_pair_cuda(const TensorView& a, const TensorView& b, Fp4Format format,
                   const PairPart& a_part, const PairPart& b_part, const TensorView& y);

}  // namespace my_ops
