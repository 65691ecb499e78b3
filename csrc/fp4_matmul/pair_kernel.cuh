// Both dense operands of a product to FP4 in one launch, and of a also what the fused kernel takes,
// its values in 16 bits. Before it, NVFP4's amax of both in one. Device only, needs no torch.
//
// Memory bounds both, and an operand alone does not fill it. n = 4096 on an H200, the L2 full of
// what is still to be written: 25 us for both amax, not twice 17, and 41 for codes, scales and
// 16-bit values, not 50 in three launches (MXFP4 37, not 46); the whole product 249 -> 234 us, of
// MXFP4 221 -> 213. With b in 16 bits, too, and the wide kernel 235 and 211, at 8192 no faster.
// Loads that are the first to leave L2 make no difference.
#pragma once

#include "fp4/fp4_amax.cuh"
#include "fp4/fp4_quantize.cuh"
#include "fp4/fp4_quantize_columns.cuh"
#include "fp4_matmul/widen_kernel.cuh"

namespace my_ops {

// Blocks of the amax kernel for each operand, one on every SM of an H200 from each: few enough
// maxima for every block of the next kernel to read, and as fast as eight times as many.
constexpr int kPairAmaxBlocks = 132, kPairAmaxThreads = 1024;

// Blocks of the quantizing kernel on an SM, which limits its registers to what does not spill.
// Seven, by the compiler's own choice for MXFP4, take 51 us at n = 4096 for the 37 of nine; ten
// take 44.
constexpr int pair_blocks_of_sm(Fp4Format format) { return format == Fp4Format::mxfp4 ? 9 : 8; }

constexpr int kPairChunks = 4;  // of a thread, for rows
constexpr int kPairRowElements = kPairChunks * kFp4Threads * kFp4Chunk;
constexpr int kPairTileK = kColumnWarps * kColumnWarpRows, kPairTileN = 64;  // of b's columns

// An operand and its FP4 form, blocks along K.
template <typename scalar_t>
struct PairOperand {
  const scalar_t* x;
  Fp4Rows shape;  // rows along K, dense and collapsed, or b's columns
  Fp4Rows lies;   // as it lies in memory, for its amax
  uint8_t *packed, *scale;
  float* amax;  // null: MXFP4
  int blocks;   // of the quantizing kernel
};

template <typename scalar_t>
struct PairArguments {
  PairOperand<scalar_t> a, b;
  uint4* a_wide;    // [M, K], 16 bits
  uint32_t* parts;  // the maxima of the amax kernel's blocks: those of a, those of b
  int b_tiles;      // along N, where b is quantized along its columns
};

template <typename scalar_t>
__global__ void __launch_bounds__(kPairAmaxThreads)
    pair_amax_kernel(const __grid_constant__ PairArguments<scalar_t> args) {
  let_next_kernel_start();
  const bool of_b = blockIdx.y == 1;
  const scalar_t* const x = of_b ? args.b.x : args.a.x;
  const Fp4Rows shape = of_b ? args.b.lies : args.a.lies;
  // A block takes a row where there are more than one, else a part of it.
  const bool rows = shape.rows > 1;
  const int64_t thread = rows ? threadIdx.x : blockIdx.x * int64_t{kPairAmaxThreads} + threadIdx.x;
  const float largest =
      rows_largest<true>(x, shape, rows ? blockIdx.x : 0, rows ? kPairAmaxBlocks : 1, thread,
                         rows ? kPairAmaxThreads : kPairAmaxBlocks * kPairAmaxThreads);
  const uint32_t bits = block_largest(largest, threadIdx.x, kPairAmaxThreads);
  if (threadIdx.x == 0) args.parts[blockIdx.y * kPairAmaxBlocks + blockIdx.x] = bits;
}

// As widen_kernel: NVFP4 in float16, MXFP4 in bfloat16.
template <Fp4Format kFormat>
__device__ __forceinline__ uint4 widened(uint32_t codes, uint32_t byte) {
  uint32_t pairs[4];
  if constexpr (kFormat == Fp4Format::nvfp4) {
    uint32_t scale[2];
    nvfp4_scale_pairs<__half>(byte, 1.0f, scale);
    decode<__half>(codes, scale[0], pairs);
  } else {
    decode_wide(codes, byte, pairs);
  }
  return code_order(pairs);
}

// Quantizes part `block` of an operand whose rows are whole blocks of a scale, one behind the
// other. kWide: writes its values in 16 bits, too.
template <Fp4Format kFormat, bool kWide, typename scalar_t>
__device__ __forceinline__ void quantize_pair_rows(const PairOperand<scalar_t>& operand,
                                                   Nvfp4TensorScale tensor, int block,
                                                   uint4* wide) {
  constexpr int kLanes = fp4_block_size(kFormat) / kFp4Chunk;
  const int64_t elements = operand.shape.K;
  const int64_t first = block * int64_t{kPairRowElements / kFp4Chunk} + threadIdx.x;
  uint32_t words[kPairChunks][4 * sizeof(scalar_t)];
#pragma unroll
  for (int c = 0; c < kPairChunks; ++c) {
    load_words<true>(operand.x, (first + c * kFp4Threads) * kFp4Chunk, elements, words[c]);
  }
#pragma unroll
  for (int c = 0; c < kPairChunks; ++c) {
    float block_amax = largest_magnitude<scalar_t, /*kKeepNaN=*/true>(words[c]);
    if constexpr (kLanes == 2) {
      block_amax = larger<true>(block_amax, __shfl_xor_sync(~0u, block_amax, 1));
    }
    const auto [byte, factor] = fp4_block_factor<kFormat>(block_amax, tensor, Fp4ScaleMode::floor);
    uint32_t codes[2];
    encode_chunk<kFormat, false, scalar_t>(words[c], factor, 0, 0, codes);
    const int64_t chunk = first + c * kFp4Threads;
    const bool inside = chunk * kFp4Chunk < elements;
    if (inside) {
      if (threadIdx.x % kLanes == 0) operand.scale[chunk / kLanes] = byte;
      store_codes<true>(operand.packed + chunk * (kFp4Chunk / 2), codes, 0, kFp4Chunk);
    }
    if constexpr (kWide) {
      // Two lanes write a half of either's 32 bytes each, so that a whole sector leaves at once.
      const bool odd = threadIdx.x % 2 == 1;
      const uint32_t other = __shfl_xor_sync(~0u, odd ? codes[0] : codes[1], 1);
      const uint32_t other_byte = kLanes == 2 ? byte : __shfl_xor_sync(~0u, uint32_t{byte}, 1);
      uint4* const to = wide + chunk / 2 * 4 + odd;
      if (inside) {
        to[0] = widened<kFormat>(odd ? other : codes[0], odd ? other_byte : byte);
        to[2] = widened<kFormat>(odd ? codes[1] : other, odd ? byte : other_byte);
      }
    }
  }
}

// Blocks for a and for b take turns, so that both are read at once, and from the end on: what the
// amax kernel has read last is still in L2 (2 us at n = 4096).
template <Fp4Format kFormat, bool kColumnsOfB, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads, pair_blocks_of_sm(kFormat))
    pair_quantize_kernel(const __grid_constant__ PairArguments<scalar_t> args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t blocks = gridDim.x, i = blocks - 1 - blockIdx.x;
  const auto of_a_before = [&](int64_t n) { return static_cast<int>(n * args.a.blocks / blocks); };
  const bool of_a = of_a_before(i + 1) > of_a_before(i);
  const int block = of_a ? of_a_before(i) : static_cast<int>(i) - of_a_before(i);
  Nvfp4TensorScale tensor;
  if constexpr (kFormat == Fp4Format::nvfp4) {
    const uint32_t* const parts = args.parts + (of_a ? 0 : kPairAmaxBlocks);
    uint32_t bits = 0;
    for (int p = threadIdx.x % 32; p < kPairAmaxBlocks; p += 32) bits = max(bits, parts[p]);
    const float largest = __uint_as_float(__reduce_max_sync(~0u, bits));
    if (block == 0 && threadIdx.x == 0) *(of_a ? args.a.amax : args.b.amax) = largest;
    tensor = nvfp4_tensor_scale(largest);
  }
  if (of_a) {
    quantize_pair_rows<kFormat, true>(args.a, tensor, block, args.a_wide);
  } else if constexpr (kColumnsOfB) {
    quantize_column_tile<kFormat, false, true>(
        args.b.x, args.b.packed, args.b.scale, args.b.shape, tensor, Fp4ScaleMode::floor, 0,
        int64_t{block % args.b_tiles} * kPairTileN, block / args.b_tiles);
  } else {
    quantize_pair_rows<kFormat, false>(args.b, tensor, block, nullptr);
  }
}

}  // namespace my_ops
