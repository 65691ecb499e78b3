// Device only: RMSNorm whose result is stored as FP4 and never goes to memory itself: 2.56 bytes an
// element of bfloat16 instead of the 6.56 of two operators. Needs no torch.
//
// Instructions bound it: with 16 an element it reaches 85 % of a copy's speed, with 20 it reached
// 70 %.
#pragma once

#include "common/reduce.cuh"
#include "fp4/fp4_encode.cuh"
#include "fp4/fp4_rmsnorm_piece.cuh"

namespace my_ops {

constexpr int kRmsnormFp4Unit = 32 * kRmsnormFp4Elements;  // a warp's pieces, side by side
constexpr int kRmsnormFp4Threads = 256;                    // at most
constexpr int kRmsnormFp4Warps = kRmsnormFp4Threads / 32;

// Pieces that a thread encodes side by side: 88 % of a copy's speed with two of 16 bits, 83 % one
// by one.
template <typename x_t>
constexpr int kRmsnormFp4Together = sizeof(x_t) == 2 ? 2 : 1;

// Thread blocks of kRmsnormFp4Threads on an SM: 128 registers a thread, or 80 where it holds less.
template <int kPieces>
constexpr int kRmsnormFp4Blocks = kPieces == 4 ? 2 : 3;

template <typename x_t, typename w_t>
struct RmsnormFp4Args {
  const x_t* x;       // [rows, H], row_stride
  const w_t* weight;  // [H]; null: ones
  uint8_t* packed;    // [rows, H / 2]
  uint8_t* scale;     // [rows, H / kBlock]
  const float* amax;  // of the tensor; null: one level, or MXFP4
  int64_t rows;
  int64_t H;  // whole FP4 blocks
  int64_t row_stride;
  double eps;
  double weight_offset;
  Fp4ScaleMode scale_mode;
};

// A thread block walks over rows, of which each warp owns some units and each lane one piece of a
// unit: a whole block of NVFP4, half a block of MXFP4, of which its neighbour has the other half.
// A thread holds its pieces of a row as float32 and has those of the next row on the way; the
// weight lies in shared memory as float32.
//
// The sums of chunks are added in float64 in another order than rmsnorm's; once in some 10^8 rows
// that shows in rstd, a float32.
template <Fp4Format kFormat, int kPieces, typename x_t, typename w_t>
__global__ void __launch_bounds__(kRmsnormFp4Threads, kRmsnormFp4Blocks<kPieces>)
    rmsnorm_fp4_quantize_kernel(const RmsnormFp4Args<x_t, w_t> args) {
  constexpr bool kNvfp4 = kFormat == Fp4Format::nvfp4;
  constexpr int kBlock = fp4_block_size(kFormat), kLanes = kBlock / kRmsnormFp4Elements;
  constexpr int kTogether = kRmsnormFp4Together<x_t>;
  extern __shared__ float4 block_weights[];  // [units][4][32]: quarters of pieces
  __shared__ double parts[2][kRmsnormFp4Warps];
  __shared__ float factors[128];  // of NVFP4's scale bytes

  // This lane's pieces: v is one of its warp's where v < units, and exists where not past the row.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), warps = blockDim.x / 32;
  const int lane = threadIdx.x % 32;
  const int H = static_cast<int>(args.H);
  const int groups = (H + kRmsnormFp4Unit * kTogether - 1) / (kRmsnormFp4Unit * kTogether);
  const int first_unit = warp * groups / warps * kTogether;
  const int units = (warp + 1) * groups / warps * kTogether - first_unit;
  const int first = first_unit * kRmsnormFp4Unit + lane * kRmsnormFp4Elements;
  const int left = min(H - first, units * kRmsnormFp4Unit);
  const auto exists = [&](int v) { return v * kRmsnormFp4Unit < left; };

  // Prepare: the weight and the factors in shared memory
  float4* const weights = block_weights + first_unit * 4 * 32 + lane;
#pragma unroll
  for (int v = 0; v < kPieces; ++v) {
    if (v >= units) break;
    const bool given = args.weight != nullptr;
    store_weights(args.weight + first + v * kRmsnormFp4Unit, given && exists(v),
                  given ? static_cast<float>(args.weight_offset) : 1.0f, weights + v * 4 * 32);
  }
  Nvfp4TensorScale tensor;
  if constexpr (kNvfp4) {
    if (args.amax) tensor = nvfp4_tensor_scale(*args.amax);
    for (int byte = threadIdx.x; byte < 128; byte += blockDim.x) {
      factors[byte] = nvfp4_factor(static_cast<uint8_t>(byte), tensor);
    }
  }
  if (threadIdx.x < 2 * kRmsnormFp4Warps) parts[0][threadIdx.x] = 0;
  __syncthreads();

  // Load: the first row
  const double inverse_H = 1.0 / static_cast<double>(args.H);
  const x_t* x = args.x + blockIdx.x * args.row_stride + first;
  uint8_t* packed = args.packed + blockIdx.x * (args.H / 2) + first / 2;
  uint8_t* scale = args.scale + blockIdx.x * (args.H / kBlock) + first / kBlock;
  RmsnormFp4Piece<x_t> next[kPieces] = {};
  const auto load = [&](int v) {
    if (exists(v)) next[v] = load_piece(x + v * kRmsnormFp4Unit);
  };
#pragma unroll
  for (int v = 0; v < kPieces; ++v) load(v);

  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    // Reduce
    float values[kPieces][kRmsnormFp4Elements];
    double piece_sums[kPieces];
#pragma unroll
    for (int v = 0; v < kPieces; ++v) piece_sums[v] = widen_piece(next[v], values[v]);
    const double warp_sum = lanes_sum<kWarpSize>(sum_of(piece_sums));
    if (lane == 0) parts[turn][warp] = warp_sum;
    __syncthreads();
    double warp_sums[kRmsnormFp4Warps];
    memcpy(warp_sums, parts[turn], sizeof warp_sums);
    const double rstd_exact = rsqrt(sum_of(warp_sums) * inverse_H + args.eps);
    const float rstd = static_cast<float>(rstd_exact);
    const float rstd_rest = static_cast<float>(rstd_exact - rstd);

    // Compute, load the next row (after the last row that one again: cheaper than a branch for
    // every piece), store
    if (row + gridDim.x < args.rows) x += gridDim.x * args.row_stride;
#pragma unroll
    for (int first_v = 0; first_v < kPieces; first_v += kTogether) {
      if (first_v >= units) break;
      Fp4Eight<x_t> halves[kTogether][2];
      float factor[kTogether];
      bool ordinary = true;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int v = first_v + i;
        normalize_piece(values[v], weights + v * 4 * 32, rstd, rstd_rest, halves[i]);
        load(v);
        uint32_t words[4 * sizeof(x_t)];
        memcpy(words, halves[i], sizeof words);
        float block_amax = largest_magnitude<x_t, /*kKeepNaN=*/true>(words);
        if constexpr (kLanes == 2) {
          block_amax = larger<true>(block_amax, __shfl_xor_sync(~0u, block_amax, 1));
        }
        uint8_t byte;
        if constexpr (kNvfp4) {
          byte = nvfp4_scale_byte(block_amax, tensor);
          factor[i] = factors[byte];
          ordinary = ordinary && factor[i] >= 0.0f;
        } else {
          const auto block = mxfp4_block_factor(block_amax, args.scale_mode);
          byte = block.byte;
          factor[i] = block.factor;
        }
        if (exists(v) && lane % kLanes == 0) scale[v * (kRmsnormFp4Unit / kBlock)] = byte;
      }
      const auto store = [&](auto all_ordinary) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          uint32_t codes[2];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            codes[h] = fp4_encode8<kFormat, all_ordinary>(halves[i][h], factor[i]);
          }
          const int v = first_v + i;
          if (exists(v)) store_codes<true>(packed, codes, v * kRmsnormFp4Unit, args.H);
        }
      };
      if (!kNvfp4 || __all_sync(~0u, ordinary)) {
        store(std::true_type());
      } else {
        store(std::false_type());
      }
    }
    packed += gridDim.x * (args.H / 2);
    scale += gridDim.x * (args.H / kBlock);
  }
}

}  // namespace my_ops
