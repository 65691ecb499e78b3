// Device only: quantize rows to FP4. One read of x and one write of the codes: 2.56 bytes an
// element of bfloat16, so memory bounds it as long as an element costs fewer than about 17
// instructions. Needs no torch.
#pragma once

#include "common/nv_fp4.cuh"
#include "common/overlap.cuh"
#include "common/philox.h"
#include "fp4/fp4_encode.cuh"
#include "fp4/fp4_launch.cuh"
#include "fp4/fp4_pack.cuh"

namespace my_ops {

constexpr int kFp4Chunk = 16;  // elements that a thread quantizes together

// Chunks of a thread: 128 bytes of x. Each thread derives NVFP4's two numbers of the tensor; on an
// H200, 16384^2 bfloat16 takes 162 us with 4 chunks, 166 with 2, 180 with 1.
template <typename scalar_t>
constexpr int kFp4Chunks = 128 / sizeof(scalar_t) / kFp4Chunk;

// The largest magnitude of a tensor, or those of `parts` parts of it.
struct Fp4Amax {
  const float* values;     // null: one level, or MXFP4
  int parts = 1;           // written by the kernel in front of this one
  float* whole = nullptr;  // where the largest goes; null: there is one part
};

// The largest of the parts is found by their bits: those of magnitudes are in the order of the
// numbers.
__device__ __forceinline__ float tensor_amax(const Fp4Amax& amax) {
  if (amax.whole == nullptr) return *amax.values;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  uint32_t bits = 0;
  for (int i = thread % 32; i < amax.parts; i += 32) {
    bits = max(bits, __float_as_uint(amax.values[i]));
  }
  const float largest = __uint_as_float(__reduce_max_sync(~0u, bits));
  if (thread == 0 && blockIdx.x == 0 && blockIdx.y == 0) *amax.whole = largest;
  return largest;
}

// The largest magnitude of the blocks of 16 rows, one below the other, which make a tile.
__device__ __forceinline__ float tile_amax(float block_amax) {
  __shared__ float of_row[kFp4TileRows][kFp4TileColumns];
  of_row[threadIdx.y][threadIdx.x] = block_amax;
  __syncthreads();
  for (int row = 0; row < kFp4TileRows; ++row) {
    block_amax = larger</*kKeepNaN=*/true>(block_amax, of_row[row][threadIdx.x]);
  }
  __syncthreads();
  return block_amax;
}

// The codes of a chunk. `counter` numbers it among all chunks, for Philox. kOrdinary: as in
// fp4_encode8.
template <Fp4Format kFormat, bool kStochastic, typename scalar_t, bool kOrdinary = false>
__device__ __forceinline__ void encode_chunk(const uint32_t (&words)[4 * sizeof(scalar_t)],
                                             float factor, uint64_t seed, uint64_t counter,
                                             uint32_t (&codes)[2]) {
  Fp4Eight<scalar_t> halves[2];
  memcpy(halves, words, sizeof halves);
  if constexpr (kStochastic) {
    const PhiloxWords random = philox_4x32_10(seed, counter);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t random_words[] = {random.word[2 * i], random.word[2 * i + 1]};
      codes[i] = fp4_encode8_stochastic(halves[i], factor, random_words);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) codes[i] = fp4_encode8<kFormat, kOrdinary>(halves[i], factor);
  }
}

// Where the chunks of a thread lie: a thread block's width apart in one row (wide rows), a thread
// block's height apart in one column (narrow rows), or alone (a short row, tiles of 16 rows).
enum class Fp4Walk { along, alone, down, tiles };

// A thread owns kChunks chunks: whole blocks of NVFP4, half blocks of MXFP4, of which its neighbour
// has the other half. (Chunks of fewer elements would cost shuffles. Chunks of 32 would be 128
// bytes of float32, so far from the neighbour's that a load takes 32 turns in L1: 86 % of a copy's
// speed instead of 100.)
template <Fp4Format kFormat, bool kStochastic, Fp4Walk kWalk, bool kAligned, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads)
    fp4_quantize_kernel(const scalar_t* x,             // [rows, K], row_stride
                        __nv_fp4x2_storage_t* packed,  // [rows, ceil(K / 2)]
                        uint8_t* scale,                // [rows, ceil(K / kBlock)]
                        Fp4Rows shape, Fp4Amax amax, Fp4ScaleMode scale_mode, uint64_t seed) {
  constexpr int kBlock = fp4_block_size(kFormat), kLanes = kBlock / kFp4Chunk;
  constexpr bool kAlong = kWalk == Fp4Walk::along || kWalk == Fp4Walk::alone;
  constexpr bool kOne = kWalk == Fp4Walk::tiles || kWalk == Fp4Walk::alone;
  constexpr int kChunks = kOne ? 1 : kFp4Chunks<scalar_t>;
  const int64_t K = shape.K, chunks_of_row = (K + kFp4Chunk - 1) / kFp4Chunk;
  const int64_t packed_stride = (K + 1) / 2, scale_stride = (K + kBlock - 1) / kBlock;

  // The whole thread block walks on together, as lanes share blocks and rows share tiles.
  wait_for_previous_kernel();
  const int64_t tile_rows = kAlong ? 1 : int64_t{blockDim.y} * kChunks;
  for (int64_t tile = blockIdx.y; tile * tile_rows < shape.rows; tile += gridDim.y) {
    const int64_t row = kAlong ? tile : tile * tile_rows + threadIdx.y;
    const int64_t chunk = int64_t{blockIdx.x} * blockDim.x * (kAlong ? kChunks : 1) + threadIdx.x;
    // What is left of the row or of the rows, of which a thread's chunks lie `step` apart. These
    // steps are constants along a row: with 64-bit arithmetic for every chunk an element costs a
    // third more.
    const int64_t left = kAlong                  ? chunks_of_row - chunk
                         : chunk < chunks_of_row ? shape.rows - row
                                                 : 0;
    const int step = kAlong ? kFp4Threads : blockDim.y;
    const int reach = left < kChunks * step ? static_cast<int>(left) : kChunks * step;
    const scalar_t* x_chunk = x + row * shape.row_stride + chunk * kFp4Chunk;
    uint8_t* codes_chunk = packed + row * packed_stride + chunk * (kFp4Chunk / 2);
    uint8_t* scale_chunk = scale + row * scale_stride + chunk / kLanes;
    const int64_t x_step = kAlong ? kFp4Threads * kFp4Chunk : blockDim.y * shape.row_stride;
    const int64_t codes_step = kAlong ? kFp4Threads * kFp4Chunk / 2 : blockDim.y * packed_stride;
    const int64_t scale_step = kAlong ? kFp4Threads / kLanes : blockDim.y * scale_stride;
    // Elements of the row from a chunk on. Where rows are whole chunks it is all of one or none.
    const auto elements_left = [&](int c) {
      if (kAligned) return c * step < reach ? int64_t{kFp4Chunk} : 0;
      return c * step < reach ? K - (chunk + (kAlong ? c * step : 0)) * kFp4Chunk : 0;
    };

    // Load
    uint32_t words[kChunks][4 * sizeof(scalar_t)];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      load_words<kAligned>(x_chunk + c * x_step, 0, elements_left(c), words[c]);
    }
    Nvfp4TensorScale tensor;
    if (kFormat == Fp4Format::nvfp4 && amax.values) tensor = nvfp4_tensor_scale(tensor_amax(amax));

#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      // Reduce
      float block_amax = largest_magnitude<scalar_t, /*kKeepNaN=*/true>(words[c]);
      if constexpr (kLanes == 2) {
        block_amax = larger<true>(block_amax, __shfl_xor_sync(~0u, block_amax, 1));
      }
      if constexpr (kWalk == Fp4Walk::tiles) block_amax = tile_amax(block_amax);
      const auto [byte, factor] = fp4_block_factor<kFormat>(block_amax, tensor, scale_mode);

      // Compute
      uint32_t codes[2];
      const int64_t in_row = chunk + (kAlong ? c * step : 0);
      const uint64_t counter = (row + (kAlong ? 0 : c * step)) * chunks_of_row + in_row;
      encode_chunk<kFormat, kStochastic, scalar_t>(words[c], factor, seed, counter, codes);

      // Store
      if (c * step < reach) {
        if (threadIdx.x % kLanes == 0) scale_chunk[c * scale_step] = byte;
        store_codes<kAligned>(codes_chunk + c * codes_step, codes, 0, elements_left(c));
      }
    }
  }
}

struct Fp4QuantizeLaunch {
  Fp4Launch launch;
  Fp4Walk walk;
};

// Rows narrower than a thread block are quantized several at a time. One of up to 2^20 elements,
// `short_row` where there are kernels for it, is divided among as many threads as it can be.
inline Fp4QuantizeLaunch fp4_quantize_launch(const Fp4Rows& x, int chunks, bool tiles,
                                             bool short_row) {
  if (tiles) {
    return {fp4_launch(x, kFp4Chunk, 1, 1, dim3(kFp4TileColumns, kFp4TileRows)), Fp4Walk::tiles};
  }
  int threads_x = 2;  // the lanes of an MXFP4 block
  while (threads_x < kFp4Threads && int64_t{threads_x} * kFp4Chunk < x.K) threads_x *= 2;
  const dim3 block(threads_x, kFp4Threads / threads_x);
  if (threads_x == kFp4Threads && short_row && x.rows == 1 && x.K <= 1 << 20) {
    return {fp4_launch(x, kFp4Chunk, 1, 1, block), Fp4Walk::alone};
  }
  if (threads_x == kFp4Threads) {
    return {fp4_launch(x, kFp4Chunk, chunks, 1, block), Fp4Walk::along};
  }
  return {fp4_launch(x, kFp4Chunk, 1, chunks, block), Fp4Walk::down};
}

}  // namespace my_ops
