// fp4_matmul of two dense operands on Hopper: both are quantized together, which leaves a in 16
// bits for the fused kernel.
#include "common/cuda_types.cuh"
#include "common/dispatch.h"
#include "common/launch.cuh"
#include "fp4_matmul/fp4_fused.h"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_pair.h"
#include "fp4_matmul/pair_kernel.cuh"
#include "fp4_matmul/pair_plan.h"

namespace my_ops {
namespace {

template <typename scalar_t>
PairOperand<scalar_t> pair_operand(const scalar_t* x, const Fp4Rows& shape, const PairPart& part,
                                   int64_t blocks) {
  return {x,
          shape,
          part.packed.mutable_data_ptr<uint8_t>(),
          part.scale.mutable_data_ptr<uint8_t>(),
          part.amax.defined() ? static_cast<uint32_t*>(part.amax.mutable_data_ptr()) : nullptr,
          static_cast<int>(blocks)};
}

template <Fp4Format kFormat, typename scalar_t>
void launch_pair(PairArguments<scalar_t> args) {
  constexpr bool kTwoLevel = kFormat == Fp4Format::nvfp4;
  OwnedTensor parts;
  if (kTwoLevel) {
    parts = OwnedTensor::empty(kPairAmaxBlocks, ScalarType::Int);
    args.parts = parts.data_ptr<uint32_t>();
    launch(pair_amax_kernel<scalar_t>, kPairAmaxBlocks, kPairAmaxThreads, 0, args);
  }
  launch_with({1, kTwoLevel},
              args.b.shape.k_stride == 1 ? pair_quantize_kernel<kFormat, false, scalar_t>
                                         : pair_quantize_kernel<kFormat, true, scalar_t>,
              args.b.blocks + (kTwoLevel ? ceil_div(args.a.blocks, kPairAmaxRows) : args.a.blocks),
              kFp4Threads, 0, args);
  if (kTwoLevel) {
    launch_with({1, true}, pair_quantize_a_kernel<scalar_t>, args.a.blocks, kFp4Threads, 0, args);
  }
}

template <typename stored_t>
void quantize_pair(const TensorView& a, const TensorView& b, Fp4Format format,
                   const PairPart& a_part, const PairPart& b_part, void* a_wide) {
  const auto* const a_data = cuda_pointer(a.const_data_ptr<stored_t>());
  const auto* const b_data = cuda_pointer(b.const_data_ptr<stored_t>());
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1), row_elements = kPairRowElements;
  PairArguments<std::remove_const_t<std::remove_pointer_t<decltype(a_data)>>> args{};
  const Fp4Rows a_row{1, M * K, M * K}, b_row{1, N * K, N * K};
  args.a = pair_operand(a_data, a_row, a_part, ceil_div(M * K, row_elements));
  if (b.stride(0) == 1) {
    args.b = pair_operand(b_data, b_row, b_part, ceil_div(N * K, row_elements));
    args.b_lies = b_row;
  } else {
    args.b_tiles = static_cast<int>(ceil_div(N, int64_t{kPairTileN}));
    args.b = pair_operand(b_data, {N, K, 1, b.stride(0)}, b_part,
                          args.b_tiles * ceil_div(K, int64_t{kPairTileK}));
    args.b_lies = fp4_collapse({K, N, b.stride(0)}, 1);
  }
  args.a_wide = static_cast<uint4*>(a_wide);
  with_format(format, [&](auto of) { launch_pair<of.value>(args); });
}

}  // namespace

// Dense rows of a, rows of b or of its transpose, all of whole blocks and at multiples of 16 bytes.
bool fp4_pair_fits_cuda(const TensorView& a, const TensorView& b, Fp4Format format) {
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const bool along_k = b.stride(0) == 1 && b.stride(1) == K;
  const bool along_n = b.stride(1) == 1 && b.stride(0) >= N && N % 8 == 0;
  return a.scalar_type() == b.scalar_type() && a.scalar_type() != ScalarType::Float &&
         a.stride(1) == 1 && a.stride(0) == K && (along_k || along_n) &&
         starts_at_multiple_of(a.const_data_ptr(), 0, 16) &&
         starts_at_multiple_of(b.const_data_ptr(), along_k ? 0 : b.stride(0) * 2, 16) &&
         pair_is_quantized_together(M, N, K, fp4_block_size(format),
                                    current_device_properties().multiProcessorCount);
}

bool fp4_pair_cuda(const TensorView& a, const TensorView& b, Fp4Format format,
                   const PairPart& a_part, const PairPart& b_part, const TensorView& y) {
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const Fp4FactorView x{a_part.packed, a_part.scale, a_part.amax, format, M, K, true};
  const Fp4FactorView factor{b_part.packed, b_part.scale, b_part.amax, format, N, K, true};
  return fp4_fused_packed(x, factor, y, [&](void* a_wide) {
    dispatch(Types<c10::Half, c10::BFloat16>(), a.scalar_type(), [&](auto zero) {
      quantize_pair<decltype(zero)>(a, b, format, a_part, b_part, a_wide);
    });
  });
}

}  // namespace my_ops
