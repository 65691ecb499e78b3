// Both dense operands of a product to FP4, and of a also what the fused kernel takes, its values in
// 16 bits. MXFP4 in one launch. NVFP4 in three, as the amax comes first, bound by memory, and codes
// are bound by instructions: the amax of b; b's codes and beside them the amax of a; a's codes.
// Device only, needs no torch.
//
// n = 4096 on an H200, the L2 full of what is still to be written: 51 us, of which the three take
// 16, 19 and 16 (loads alone 16, 15 and 5); 56 where two launches take the amax of both, then the
// codes of both (8192: 185 and 191), 54 with a first and b last. MXFP4 37, not 46 in three
// launches. Of hints to L2 one helps, 1 us: b leaves first when it is read again. With b in 16
// bits, too, and the wide kernel the whole product is no faster. In one cooperative launch, with
// half of the elements kept in registers and shared memory, it is slower; with nearly all of an
// operand there, and the copy engine filling in a while b's codes are made, it takes 51 us, too,
// but the fused kernel behind it 8 more.
#pragma once

#include "fp4/fp4_amax.cuh"
#include "fp4/fp4_quantize.cuh"
#include "fp4/fp4_quantize_columns.cuh"
#include "fp4_matmul/widen_kernel.cuh"

namespace my_ops {

// Blocks of the amax kernel, one on every SM of an H200: few enough maxima for every block of the
// next kernel to read.
constexpr int kPairAmaxBlocks = 132, kPairAmaxThreads = 1024;

// Blocks of the quantizing kernel on an SM, which limits its registers to what hardly spills.
// Seven, by the compiler's own choice for MXFP4, take 51 us at n = 4096 for the 37 of nine; ten
// take 44.
constexpr int pair_blocks_of_sm(Fp4Format format) { return format == Fp4Format::mxfp4 ? 9 : 8; }

constexpr int kPairChunks = 4;  // of a thread, for rows
constexpr int kPairRowElements = kPairChunks * kFp4Threads * kFp4Chunk;
constexpr int kPairAmaxRows = 4;  // of kPairRowElements of a, for a block that finds their amax
constexpr int kPairTileK = kColumnWarps * kColumnWarpRows, kPairTileN = 64;  // of b's columns

// An operand and its FP4 form, blocks along K.
template <typename scalar_t>
struct PairOperand {
  const scalar_t* x;
  Fp4Rows shape;  // rows along K, dense and collapsed, or b's columns
  uint8_t *packed, *scale;
  uint32_t* amax;  // the bits of a float32; null: MXFP4
  int blocks;      // that quantize it
};

template <typename scalar_t>
struct PairArguments {
  PairOperand<scalar_t> a, b;
  Fp4Rows b_lies;   // b as it lies in memory, for its amax
  uint4* a_wide;    // [M, K], 16 bits
  uint32_t* parts;  // the maxima of the amax kernel's blocks
  int b_tiles;      // along N, where b is quantized along its columns
};

// Of b. A block takes a row where there are more than one, else a part of it.
template <typename scalar_t>
__global__ void __launch_bounds__(kPairAmaxThreads)
    pair_amax_kernel(const __grid_constant__ PairArguments<scalar_t> args) {
  let_next_kernel_start();
  const bool rows = args.b_lies.rows > 1;
  const int64_t thread = rows ? threadIdx.x : blockIdx.x * int64_t{kPairAmaxThreads} + threadIdx.x;
  const float largest =
      rows_largest<true>(args.b.x, args.b_lies, rows ? blockIdx.x : 0, rows ? kPairAmaxBlocks : 1,
                         thread, rows ? kPairAmaxThreads : kPairAmaxBlocks * kPairAmaxThreads);
  const uint32_t bits = block_largest(largest, threadIdx.x, kPairAmaxThreads);
  if (threadIdx.x != 0) return;
  args.parts[blockIdx.x] = bits;
  if (blockIdx.x == 0) *args.a.amax = 0;  // where the blocks of the next kernel meet
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
// other. tensor_of() waits for the kernel in front: the loads need not, as it writes no operand,
// and asking a warp once for ordinary factors saves branches; together 1.5 us of 217, n = 4096.
// kWide: writes its values in 16 bits, too.
template <Fp4Format kFormat, bool kWide, typename scalar_t, typename TensorOf>
__device__ __forceinline__ void quantize_pair_rows(const PairOperand<scalar_t>& operand,
                                                   const TensorOf& tensor_of, int block,
                                                   uint4* wide) {
  constexpr int kLanes = fp4_block_size(kFormat) / kFp4Chunk;
  const int64_t elements = operand.shape.K;
  const int64_t first = block * int64_t{kPairRowElements / kFp4Chunk} + threadIdx.x;
  uint32_t words[kPairChunks][4 * sizeof(scalar_t)];
#pragma unroll
  for (int c = 0; c < kPairChunks; ++c) {
    load_words<true>(operand.x, (first + c * kFp4Threads) * kFp4Chunk, elements, words[c]);
  }
  const Nvfp4TensorScale tensor = tensor_of();
#pragma unroll
  for (int c = 0; c < kPairChunks; ++c) {
    float block_amax = largest_magnitude<scalar_t, /*kKeepNaN=*/true>(words[c]);
    if constexpr (kLanes == 2) {
      block_amax = larger<true>(block_amax, __shfl_xor_sync(~0u, block_amax, 1));
    }
    const auto [byte, factor] = fp4_block_factor<kFormat>(block_amax, tensor, Fp4ScaleMode::floor);
    uint32_t codes[2];
    if (kFormat == Fp4Format::nvfp4 && __all_sync(~0u, factor >= 0.0f)) {
      encode_chunk<kFormat, false, scalar_t, /*kOrdinary=*/true>(words[c], factor, 0, 0, codes);
    } else {
      encode_chunk<kFormat, false, scalar_t>(words[c], factor, 0, 0, codes);
    }
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

// Of part `block` of a.
template <typename scalar_t>
__device__ __forceinline__ void find_amax(const PairOperand<scalar_t>& a, int block) {
  constexpr int64_t kElements = kPairAmaxRows * kPairRowElements;
  const int64_t first = block * kElements, left = a.shape.K - first;
  const Fp4Rows part{1, left < kElements ? left : kElements, 0};
  const float largest =
      rows_largest<true, 2 * kPairChunks>(a.x + first, part, 0, 1, threadIdx.x, kFp4Threads);
  const uint32_t bits = block_largest(largest, threadIdx.x, kFp4Threads);
  wait_for_previous_kernel();
  if (threadIdx.x == 0) raise_amax(a.amax, bits);
}

// b, and what of a can be done at the same time: all in MXFP4, its amax in NVFP4. Blocks for either
// take turns. Both are quantized from their end on: what the amax kernel has read last is still in
// L2, and so is, for the product, what it begins with.
template <Fp4Format kFormat, bool kColumnsOfB, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads, pair_blocks_of_sm(kFormat))
    pair_quantize_kernel(const __grid_constant__ PairArguments<scalar_t> args) {
  constexpr bool kTwoLevel = kFormat == Fp4Format::nvfp4;
  let_next_kernel_start();
  const int64_t blocks = gridDim.x, a_blocks = blocks - args.b.blocks;
  const int64_t i = blocks - 1 - blockIdx.x;
  const auto of_a_before = [&](int64_t n) { return static_cast<int>(n * a_blocks / blocks); };
  const bool of_a = of_a_before(i + 1) > of_a_before(i);
  const int block = of_a ? of_a_before(i) : static_cast<int>(i) - of_a_before(i);
  if (of_a && kTwoLevel) return find_amax(args.a, static_cast<int>(a_blocks) - 1 - block);
  if constexpr (!kTwoLevel) wait_for_previous_kernel();  // for nothing, but behind loads +0.7 us
  const auto tensor_of = [&] {
    Nvfp4TensorScale tensor;
    if constexpr (kTwoLevel) {
      wait_for_previous_kernel();
      uint32_t bits = 0;
      for (int p = threadIdx.x % 32; p < kPairAmaxBlocks; p += 32) bits = max(bits, args.parts[p]);
      bits = __reduce_max_sync(~0u, bits);
      if (block == 0 && threadIdx.x == 0) *args.b.amax = bits;
      tensor = nvfp4_tensor_scale(__uint_as_float(bits));
    }
    return tensor;
  };
  if (of_a) {
    quantize_pair_rows<kFormat, true>(args.a, tensor_of, block, args.a_wide);
  } else if constexpr (kColumnsOfB) {
    quantize_column_tile<kFormat, false, true, kTwoLevel>(
        args.b.x, args.b.packed, args.b.scale, args.b.shape, tensor_of(), Fp4ScaleMode::floor, 0,
        int64_t{block % args.b_tiles} * kPairTileN, block / args.b_tiles);
  } else {
    quantize_pair_rows<kFormat, false>(args.b, tensor_of, block, nullptr);
  }
}

// a in NVFP4, from its end on, too.
template <typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads, pair_blocks_of_sm(Fp4Format::nvfp4))
    pair_quantize_a_kernel(const __grid_constant__ PairArguments<scalar_t> args) {
  let_next_kernel_start();
  const auto tensor_of = [&] {
    wait_for_previous_kernel();
    return nvfp4_tensor_scale(__uint_as_float(*args.a.amax));
  };
  quantize_pair_rows<Fp4Format::nvfp4, true>(
      args.a, tensor_of, static_cast<int>(gridDim.x - 1 - blockIdx.x), args.a_wide);
}

}  // namespace my_ops
