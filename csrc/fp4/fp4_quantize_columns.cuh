// Device only: quantize a transposed matrix, the columns of a row-major one, without a copy of it.
// Needs no torch.
#pragma once

#include "fp4/fp4_quantize.cuh"

namespace my_ops {

// A warp reads 128 bytes of each of 32 rows of the memory, a thread 4 bytes: one or two columns, of
// which it owns whole blocks. Codes and scales then pass through shared memory, so that they are
// stored along the columns. 128 by 128 elements with more warps are no faster; with fewer rows a
// warp it is 15 % slower.
constexpr int kColumnWarps = 4, kColumnWarpRows = 32;

template <typename scalar_t>
constexpr int kColumnsOfThread = 4 / sizeof(scalar_t);

template <bool kAligned, bool kLast, typename scalar_t>
__device__ __forceinline__ uint32_t load_columns(const scalar_t* x, int columns) {
  if constexpr (kAligned) {
    const auto* const word = reinterpret_cast<const uint32_t*>(x);
    return columns > 0 ? (kLast ? __ldcs(word) : *word) : 0u;
  }
  scalar_t elements[kColumnsOfThread<scalar_t>] = {};
#pragma unroll
  for (int c = 0; c < kColumnsOfThread<scalar_t>; ++c) {
    if (c < columns) elements[c] = x[c];
  }
  uint32_t word;
  memcpy(&word, elements, sizeof word);
  return word;
}

// Elements [0, kBlock) of column c of a thread, as float32 words.
template <typename scalar_t, int kRows>
__device__ __forceinline__ void column_of(const uint32_t (&rows)[kRows], int c,
                                          uint32_t (&column)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if constexpr (sizeof(scalar_t) == 4) {
      column[r] = rows[r];
    } else {
      const float2 both = to_floats(as_pair<scalar_t>(rows[r]));
      column[r] = __float_as_uint(c == 0 ? both.x : both.y);
    }
  }
}

// Stores the codes and scales of a whole tile, from shared memory to where its first row begins.
template <int kRows, int kBlocks, int kChunks>
__device__ __forceinline__ void store_whole_tile(__nv_fp4x2_storage_t* packed,
                                                 int64_t packed_stride,
                                                 const uint2 (&codes)[kChunks][kRows + 2],
                                                 uint8_t* scale, int64_t scale_stride,
                                                 const uint8_t (&scales)[kBlocks][kRows]) {
  constexpr int kThreads = 32 * kColumnWarps;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int chunk = threadIdx.x % kChunks, row = (threadIdx.x + i * kThreads) / kChunks;
    *reinterpret_cast<uint2*>(packed + row * packed_stride + chunk * (kFp4Chunk / 2)) =
        codes[chunk][row];
  }
  if (threadIdx.x >= kRows) return;
  Vec<uint8_t, kBlocks> of_row;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) of_row.elements[block] = scales[block][threadIdx.x];
  *reinterpret_cast<Vec<uint8_t, kBlocks>*>(scale + threadIdx.x * scale_stride) = of_row;
}

// Quantizes a thread block's rows from first_row on, the elements of `tile` along K. A thread block
// that takes another tile has to synchronize first: codes and scales are in shared memory. kLast:
// nobody reads x again, so it may be the first to leave L2.
template <Fp4Format kFormat, bool kStochastic, bool kAligned, bool kLast = false, typename scalar_t>
__device__ __forceinline__ void quantize_column_tile(const scalar_t* x,
                                                     __nv_fp4x2_storage_t* packed, uint8_t* scale,
                                                     const Fp4Rows& shape, Nvfp4TensorScale tensor,
                                                     Fp4ScaleMode scale_mode, uint64_t seed,
                                                     int64_t first_row, int64_t tile) {
  constexpr int kBlock = fp4_block_size(kFormat);
  constexpr int kColumns = kColumnsOfThread<scalar_t>;
  constexpr int kTileRows = 32 * kColumns, kTileK = kColumnWarps * kColumnWarpRows;
  constexpr int kTileChunks = kTileK / kFp4Chunk, kTileBlocks = kTileK / kBlock;
  __shared__ uint2 tile_codes[kTileChunks][kTileRows + 2];  // + 2: fewer bank conflicts
  __shared__ uint8_t tile_scales[kTileBlocks][kTileRows];

  const int64_t K = shape.K, packed_stride = (K + 1) / 2;
  const int64_t scale_stride = (K + kBlock - 1) / kBlock;
  const int64_t chunks_of_row = (K + kFp4Chunk - 1) / kFp4Chunk;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = lane * kColumns;
  const int64_t columns_left = shape.rows - first_row - column;
  const int columns = columns_left < kColumns ? static_cast<int>(columns_left) : kColumns;
  const int64_t warp_k = tile * kTileK + warp * kColumnWarpRows;
  const int64_t k_left = K - warp_k;
  // Then nothing has to be asked for each element, which saves a quarter of the instructions: 51 us
  // instead of 60 at [8192, 8192] bfloat16.
  const bool whole = kAligned && first_row + kTileRows <= shape.rows && K % kTileK == 0;

  // Load
  uint32_t rows[kColumnWarpRows / kBlock][kBlock];
  const scalar_t* const x_warp = x + warp_k * shape.k_stride + first_row + column;
  const auto load = [&](bool all) {
#pragma unroll
    for (int r = 0; r < kColumnWarpRows; ++r) {
      rows[r / kBlock][r % kBlock] = load_columns<kAligned, kLast>(
          x_warp + r * shape.k_stride, all ? kColumns : (r < k_left ? columns : 0));
    }
  };
  whole ? load(true) : load(false);

  // Reduce and compute
#pragma unroll
  for (int b = 0; b < kColumnWarpRows / kBlock; ++b) {
    const int block = warp * (kColumnWarpRows / kBlock) + b;
    const float2 largest = largest_magnitudes<scalar_t, /*kKeepNaN=*/true>(rows[b]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      uint32_t elements[kBlock];
      column_of<scalar_t>(rows[b], c, elements);
      const float block_amax = c == 0 ? largest.x : largest.y;
      const auto [byte, factor] = fp4_block_factor<kFormat>(block_amax, tensor, scale_mode);
      tile_scales[block][column + c] = byte;
#pragma unroll
      for (int i = 0; i < kBlock / kFp4Chunk; ++i) {
        const int chunk = block * (kBlock / kFp4Chunk) + i;
        const uint64_t counter =
            (first_row + column + c) * chunks_of_row + tile * kTileChunks + chunk;
        uint32_t words[kFp4Chunk], codes[2];
        memcpy(words, elements + i * kFp4Chunk, sizeof words);
        encode_chunk<kFormat, kStochastic, float>(words, factor, seed, counter, codes);
        tile_codes[chunk][column + c] = make_uint2(codes[0], codes[1]);
      }
    }
  }
  __syncthreads();

  // Store
  if (whole) {
    store_whole_tile<kTileRows, kTileBlocks>(
        packed + first_row * packed_stride + tile * (kTileK / 2), packed_stride, tile_codes,
        scale + first_row * scale_stride + tile * kTileBlocks, scale_stride, tile_scales);
    return;
  }
  for (int i = threadIdx.x; i < kTileRows * kTileChunks; i += blockDim.x) {
    const int64_t row = first_row + i / kTileChunks;
    const int64_t k = tile * kTileK + i % kTileChunks * kFp4Chunk;
    if (row >= shape.rows || k >= K) continue;
    const uint2 two = tile_codes[i % kTileChunks][i / kTileChunks];
    const uint32_t codes[] = {two.x, two.y};
    if (K % kFp4Chunk == 0) {
      store_codes</*kAligned=*/true>(packed + row * packed_stride, codes, k, K);
    } else {
      store_codes</*kAligned=*/false>(packed + row * packed_stride, codes, k, K);
    }
  }
  for (int i = threadIdx.x; i < kTileRows * kTileBlocks; i += blockDim.x) {
    const int64_t row = first_row + i / kTileBlocks;
    const int64_t block = tile * kTileBlocks + i % kTileBlocks;
    if (row < shape.rows && block * kBlock < K) {
      scale[row * scale_stride + block] = tile_scales[i % kTileBlocks][i / kTileBlocks];
    }
  }
}

template <Fp4Format kFormat, bool kStochastic, bool kAligned, typename scalar_t>
__global__ void __launch_bounds__(32 * kColumnWarps)
    fp4_quantize_columns_kernel(const scalar_t* x,             // [K, rows], k_stride
                                __nv_fp4x2_storage_t* packed,  // [rows, ceil(K / 2)]
                                uint8_t* scale,                // [rows, ceil(K / kBlock)]
                                Fp4Rows shape, const float* amax, Fp4ScaleMode scale_mode,
                                uint64_t seed) {
  constexpr int kTileK = kColumnWarps * kColumnWarpRows;
  const int64_t first_row = int64_t{blockIdx.x} * (32 * kColumnsOfThread<scalar_t>);
  Nvfp4TensorScale tensor;
  if (kFormat == Fp4Format::nvfp4 && amax) tensor = nvfp4_tensor_scale(*amax);
  for (int64_t tile = blockIdx.y; tile * kTileK < shape.K; tile += gridDim.y) {
    quantize_column_tile<kFormat, kStochastic, kAligned>(x, packed, scale, shape, tensor,
                                                         scale_mode, seed, first_row, tile);
    __syncthreads();
  }
}

inline Fp4Launch fp4_columns_launch(const Fp4Rows& x, int columns_of_thread) {
  const int64_t row_tiles = ceil_div(x.rows, 32 * columns_of_thread);
  constexpr int kTileK = kColumnWarps * kColumnWarpRows;
  const int64_t k_tiles = ceil_div(x.K, kTileK);
  return {dim3(static_cast<unsigned>(row_tiles),
               static_cast<unsigned>(k_tiles < kMaxGridY ? k_tiles : kMaxGridY)),
          dim3(32 * kColumnWarps)};
}

}  // namespace my_ops
