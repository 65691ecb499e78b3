// fp4_dequantize on the CPU: plain loops, the readable twin of fp4_dequantize_cuda.cu.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "common/ceil_div.h"
#include "common/cpu.h"
#include "fp4/fp4.h"
#include "fp4/fp4_pieces.h"

namespace my_ops {
namespace {

// Up to kRun values of a row, of which the block at b has factors[b / kBlock]. One step a loop, as
// the compiler gives vectors to each then: 24 to 27 ms for 63 to 104 with the last three in one,
// 4096 x 4096, two threads.
template <int kBlock, typename scalar_t>
MY_OPS_VECTORS void decode_run(const uint8_t* bytes, const float* factors, int64_t count,
                               scalar_t* y) {
  uint8_t codes[kRun];
  float values[kRun];
  for (int64_t i = 0; i < ceil_div(count, int64_t{2}); ++i) {
    codes[2 * i] = static_cast<uint8_t>(fp4_code(bytes[i], 0));
    codes[2 * i + 1] = static_cast<uint8_t>(fp4_code(bytes[i], 1));
  }
  for (int64_t i = 0; i < count; ++i) values[i] = e2m1_decode(codes[i]);
  for (int64_t i = 0; i < count; ++i) values[i] = mul_rn(values[i], factors[i / kBlock]);
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<scalar_t>(values[i]);
}

template <Fp4Format kFormat, typename scalar_t>
void dequantize_rows(const uint8_t* packed, const uint8_t* scale, float global, const Fp4Rows& rows,
                     scalar_t* y) {
  constexpr int kBlock = fp4_block_size(kFormat);
  const int64_t packed_stride = ceil_div(rows.K, int64_t{2});
  const int64_t scale_stride = ceil_div(rows.K, int64_t{kBlock});
  for_each_piece(rows, kRun, [&](int64_t row, int64_t k, int64_t count) {
    float factors[kRun / kBlock];
    const uint8_t* const bytes = scale + row * scale_stride + k / kBlock;
    for (int64_t b = 0; b < ceil_div(count, int64_t{kBlock}); ++b) {
      factors[b] = kFormat == Fp4Format::nvfp4 ? nvfp4_decode_scale(bytes[b], global)
                                               : e8m0_decode(bytes[b]);
    }
    decode_run<kBlock>(packed + row * packed_stride + k / 2, factors, count, y + row * rows.K + k);
  });
}

}  // namespace

void fp4_dequantize_cpu(const TensorView& packed, const TensorView& scale, const float* amax,
                        Fp4Format format, const Fp4Rows& rows, const TensorView& y) {
  const float global = amax ? nvfp4_tensor_scale(*amax).global : 1.0f;
  prefer_huge_pages(y);
  dispatch(Fp4Floats(), y.scalar_type(), [&](auto zero) {
    with_format(format, [&](auto constant) {
      dequantize_rows<decltype(constant)::value>(packed.const_data_ptr<uint8_t>(),
                                                 scale.const_data_ptr<uint8_t>(), global, rows,
                                                 y.mutable_data_ptr<decltype(zero)>());
    });
  });
}

}  // namespace my_ops
