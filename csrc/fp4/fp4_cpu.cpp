// fp4_quantize and fp4_hadamard on the CPU: the readable twin of the .cuh files.
#include <ATen/Parallel.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>

#include "common/ceil_div.h"
#include "common/cpu.h"
#include "common/philox.h"
#include "fp4/fp4.h"
#include "fp4/fp4_block.h"
#include "fp4/fp4_hadamard.h"
#include "fp4/fp4_pieces.h"

namespace my_ops {
namespace {

constexpr int64_t kTileRows = 16;  // of a tile with one scale (block2d)

// The largest magnitude of the tile that a block of one row is part of.
template <typename scalar_t>
int32_t tile_largest(const scalar_t* x, const Fp4Rows& shape, int64_t row, int64_t k,
                     int64_t count) {
  const int64_t first = row / kTileRows * kTileRows;
  int32_t largest = 0;
  for (int64_t r = first; r < std::min(first + kTileRows, shape.rows); ++r) {
    for (int64_t i = 0; i < count; ++i) {
      largest = max_of(largest, magnitude_bits(x[r * shape.row_stride + k + i]));
    }
  }
  return largest;
}

// Of a run of elements, NaN ignored.
template <typename scalar_t>
MY_OPS_VECTORS int32_t largest_magnitude(const scalar_t* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = magnitude_bits(x[i]);
    largest = max_of(largest, is_nan_bits(magnitude) ? 0 : magnitude);
  }
  return largest;
}

// The codes of scaled elements, rounded stochastically. `chunk` numbers the first 16 of them.
void encode_stochastic(const float* elements, int64_t count, uint64_t seed, uint64_t chunk,
                       uint8_t* codes) {
  for (int64_t i = 0; i < count; i += 16, ++chunk) {
    const PhiloxWords random = philox_4x32_10(seed, chunk);
    for (int e = 0; e < 16; ++e) {
      const uint32_t random_byte = (random.word[e / 4] >> (8 * (e % 4))) & 0xFFu;
      codes[i + e] = static_cast<uint8_t>(e2m1_encode_stochastic(elements[i + e], random_byte));
    }
  }
}

// A run of `count` elements of row `row` from k on, to its codes in `bytes` and the scales of its
// blocks.
template <int kBlock, typename scalar_t>
MY_OPS_VECTORS void quantize_run(const scalar_t* x, const Fp4Rows& shape,
                                 const Fp4QuantizeOptions& options, Nvfp4TensorScale tensor,
                                 int64_t row, int64_t k, int64_t count, uint8_t* bytes,
                                 uint8_t* scales) {
  // Load
  const scalar_t* x_run = x + row * shape.row_stride + k;
  const int64_t padded = ceil_div(count, int64_t{kBlock}) * kBlock;
  float elements[kRun];
  for (int64_t i = 0; i < count; ++i) elements[i] = x_run[i];
  std::fill(elements + count, elements + padded, 0.0f);

  // Scale. Elements of a NaN block become 6, whose code is 7.
  for (int64_t b = 0; b < padded; b += kBlock) {
    float* block = elements + b;
    int32_t largest = 0;
    for (int i = 0; i < kBlock; ++i) largest = max_of(largest, magnitude_bits(block[i]));
    if (options.tiles) {
      largest = tile_largest(x, shape, row, k + b, std::min(int64_t{kBlock}, count - b));
    }
    const float amax = bits_float(largest);
    const auto block_scale = kBlock == 16 ? nvfp4_block_scale(amax, tensor)
                                          : mxfp4_block_scale(amax, options.scale_mode);
    scales[b / kBlock] = block_scale.byte;
    for (int i = 0; i < kBlock; ++i) block[i] = mul_rn(block[i], block_scale.multiplier);
    if (block_scale.is_nan) std::fill(block, block + kBlock, kE2M1Max);
  }

  // Encode
  uint8_t codes[kRun];
  if (options.stochastic) {
    const int64_t chunk = row * ceil_div(shape.K, int64_t{16}) + k / 16;
    encode_stochastic(elements, padded, options.seed, chunk, codes);
  } else {
    for (int64_t i = 0; i < padded; ++i) codes[i] = static_cast<uint8_t>(e2m1_encode(elements[i]));
  }

  // Store. The spare nibble of an odd row is 0.
  if (count % 2 != 0) codes[count] = 0;
  for (int64_t i = 0; i < ceil_div(count, int64_t{2}); ++i) {
    bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

template <int kBlock, typename scalar_t>
void quantize_rows(const scalar_t* x, const Fp4Rows& shape, const Fp4QuantizeOptions& options,
                   uint8_t* packed, uint8_t* scale) {
  const auto tensor = options.amax ? nvfp4_tensor_scale(*options.amax) : Nvfp4TensorScale{};
  const int64_t packed_stride = ceil_div(shape.K, int64_t{2});
  const int64_t scale_stride = ceil_div(shape.K, int64_t{kBlock});
  for_each_piece(shape, kRun, [&](int64_t row, int64_t k, int64_t count) {
    quantize_run<kBlock>(x, shape, options, tensor, row, k, count,
                         packed + row * packed_stride + k / 2,
                         scale + row * scale_stride + k / kBlock);
  });
}

}  // namespace

// The bits of floats that are not negative order as the floats do, and every NaN lies above them.
void fp4_amax_cpu(const TensorView& x, const Fp4Rows& rows, const TensorView& amax) {
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    const auto* x_data = x.const_data_ptr<decltype(zero)>();
    const auto shape = fp4_collapse(rows, 1);
    const int32_t largest = at::parallel_reduce(
        0, shape.rows * shape.K, kGrainElements, int32_t{0},
        [&](int64_t begin, int64_t end, int32_t bits) {
          while (begin < end) {
            const int64_t row = begin / shape.K, k = begin % shape.K;
            const int64_t count = std::min(end - begin, shape.K - k);
            bits = max_of(bits, largest_magnitude(x_data + row * shape.row_stride + k, count));
            begin += count;
          }
          return bits;
        },
        [](int32_t a, int32_t b) { return max_of(a, b); });
    *amax.mutable_data_ptr<float>() = bits_float(largest);
  });
}

void fp4_quantize_cpu(const TensorView& x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                      const TensorView& packed, const TensorView& scale) {
  const int block = fp4_block_size(options.format);
  const auto shape = options.tiles ? rows : fp4_collapse(rows, block);
  auto* packed_data = packed.mutable_data_ptr<uint8_t>();
  auto* scale_data = scale.mutable_data_ptr<uint8_t>();
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    const auto* x_data = x.const_data_ptr<decltype(zero)>();
    if (options.format == Fp4Format::nvfp4) {
      quantize_rows<16>(x_data, shape, options, packed_data, scale_data);
    } else {
      quantize_rows<32>(x_data, shape, options, packed_data, scale_data);
    }
  });
}

void fp4_hadamard_cpu(const TensorView& x, const Fp4Rows& rows, const TensorView& y) {
  auto* y_data = y.mutable_data_ptr<float>();
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    const auto* x_data = x.const_data_ptr<decltype(zero)>();
    for_each_piece(rows, kHadamardPoints, [&](int64_t row, int64_t k, int64_t count) {
      const auto* x_group = x_data + row * rows.row_stride + k * rows.k_stride;
      float elements[kHadamardPoints] = {};
      for (int64_t i = 0; i < count; ++i) elements[i] = x_group[i * rows.k_stride];
      hadamard_transform(elements);
      std::copy_n(elements, kHadamardPoints, y_data + row * y.size(-1) + k);
    });
  });
}

}  // namespace my_ops
