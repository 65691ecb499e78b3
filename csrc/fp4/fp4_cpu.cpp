// fp4_quantize, fp4_dequantize on the CPU: block by block, the readable twin of the .cuh files.
#include <ATen/Parallel.h>

#include <algorithm>

#include "common/philox.h"
#include "fp4/fp4.h"
#include "fp4/fp4_block.h"

namespace my_ops {
namespace {

constexpr int64_t kGrainElements = 32768;  // worth a thread: about 100 us
constexpr int kMaxBlock = 32;
constexpr int kEight = 8;  // elements that are encoded into one word
constexpr int64_t kTileRows = 16;

uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7FFFFFFFu; }

// Calls function(row, first k, number of elements) for every block, in parallel.
template <typename Function>
void for_each_block(const Fp4Rows& shape, int64_t block, Function function) {
  const int64_t blocks_per_row = (shape.K + block - 1) / block;
  at::parallel_for(0, shape.rows * blocks_per_row, kGrainElements / block,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t b = begin; b < end; ++b) {
                       const int64_t row = b / blocks_per_row, k = b % blocks_per_row * block;
                       function(row, k, std::min(block, shape.K - k));
                     }
                   });
}

// Codes of elements [k, k + 8) of a row.
uint32_t encode_eight(const float (&x)[kEight], const Fp4BlockScale& scale,
                      const Fp4QuantizeOptions& options, int64_t row, int64_t k, int64_t K) {
  if (!options.stochastic) return fp4_encode<kEight>(x, scale);
  const auto random = philox_4x32_10(options.seed, row * ((K + 15) / 16) + k / 16);
  const int half = k % 16 / kEight * 2;
  const uint32_t words[] = {random.word[half], random.word[half + 1]};
  return fp4_encode_stochastic<kEight>(x, scale, words);
}

// The largest magnitude of the tile that a block of one row is part of.
template <typename scalar_t>
uint32_t tile_largest(const scalar_t* x, const Fp4Rows& shape, int64_t row, int64_t k,
                      int64_t count) {
  const int64_t first = row / kTileRows * kTileRows;
  uint32_t largest = 0;
  for (int64_t r = first; r < std::min(first + kTileRows, shape.rows); ++r) {
    for (int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, magnitude_bits(x[r * shape.row_stride + k + i]));
    }
  }
  return largest;
}

}  // namespace

// The bits of floats that are not negative order as the floats do, and every NaN lies above them.
void fp4_amax_cpu(const TensorView& x, const Fp4Rows& rows, const TensorView& amax) {
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto shape = fp4_collapse(rows, 1);
    const uint32_t largest = at::parallel_reduce(
        0, shape.rows * shape.K, kGrainElements, 0u,
        [&](int64_t begin, int64_t end, uint32_t bits) {
          int64_t row = begin / shape.K, k = begin % shape.K;
          for (int64_t i = begin; i < end; ++i) {
            const uint32_t magnitude = magnitude_bits(x_data[row * shape.row_stride + k]);
            bits = is_nan_bits(magnitude) ? bits : std::max(bits, magnitude);
            if (++k == shape.K) {
              ++row;
              k = 0;
            }
          }
          return bits;
        },
        [](uint32_t a, uint32_t b) { return std::max(a, b); });
    *amax.mutable_data_ptr<float>() = bits_float(largest);
  });
}

void fp4_quantize_cpu(const TensorView& x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                      const TensorView& packed, const TensorView& scale) {
  const bool nvfp4 = options.format == Fp4Format::nvfp4;
  const int64_t block = fp4_block_size(options.format);
  const auto tensor = options.amax ? nvfp4_tensor_scale(*options.amax) : Nvfp4TensorScale{};
  auto* packed_data = packed.mutable_data_ptr<uint8_t>();
  auto* scale_data = scale.mutable_data_ptr<uint8_t>();
  dispatch(Fp4Floats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto* x_data = x.const_data_ptr<scalar_t>();
    for_each_block(rows, block, [&](int64_t row, int64_t k, int64_t count) {
      const auto* x_block = x_data + row * rows.row_stride + k;
      float elements[kMaxBlock / kEight][kEight] = {};
      uint32_t largest = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float element = x_block[i];
        elements[i / kEight][i % kEight] = element;
        largest = std::max(largest, magnitude_bits(element));
      }
      if (options.tiles) largest = tile_largest(x_data, rows, row, k, count);
      const auto block_scale = nvfp4 ? nvfp4_block_scale(bits_float(largest), tensor)
                                     : mxfp4_block_scale(bits_float(largest), options.scale_mode);
      scale_data[row * scale.size(-1) + k / block] = block_scale.byte;
      uint8_t* bytes = packed_data + row * packed.size(-1) + k / 2;
      for (int64_t i = 0; i < count; i += kEight) {
        const auto codes =
            encode_eight(elements[i / kEight], block_scale, options, row, k + i, rows.K);
        for (int64_t e = i; e < std::min(i + kEight, count); e += 2) {
          const uint32_t mask = e + 1 < count ? 0xFFu : 0x0Fu;  // the spare nibble is 0
          bytes[e / 2] = static_cast<uint8_t>((codes >> (4 * (e - i))) & mask);
        }
      }
    });
  });
}

void fp4_dequantize_cpu(const TensorView& packed, const TensorView& scale, const float* amax,
                        Fp4Format format, const Fp4Rows& rows, const TensorView& y) {
  const int64_t block = fp4_block_size(format);
  const float global = amax ? nvfp4_tensor_scale(*amax).global : 1.0f;
  const auto* packed_data = packed.const_data_ptr<uint8_t>();
  const auto* scale_data = scale.const_data_ptr<uint8_t>();
  dispatch(Fp4Floats(), y.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    auto* y_data = y.mutable_data_ptr<scalar_t>();
    for_each_block(rows, block, [&](int64_t row, int64_t k, int64_t count) {
      const uint8_t byte = scale_data[row * scale.size(-1) + k / block];
      const float factor =
          format == Fp4Format::nvfp4 ? nvfp4_decode_scale(byte, global) : e8m0_decode(byte);
      const uint8_t* bytes = packed_data + row * packed.size(-1) + k / 2;
      auto* y_block = y_data + row * rows.K + k;
      for (int64_t i = 0; i < count; ++i) {
        y_block[i] = static_cast<scalar_t>(e2m1_decode(fp4_code(bytes[i / 2], i)) * factor);
      }
    });
  });
}

}  // namespace my_ops
