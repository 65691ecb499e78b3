// Compares csrc/common/fp4.h with the conversions of CUDA's own headers on the host; prints counts.
// Built and run by tests/test_fp4_vectors.py with the host compiler alone.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cstdio>

#include "common/fp4.h"

namespace {

struct Count {
  const char* name;
  long long tried = 0, differing = 0;
  void add(bool same) {
    ++tried;
    differing += !same;
  }
  ~Count() { std::printf("%s tried %lld differing %lld\n", name, tried, differing); }
};

void compare_e2m1(Count& count, uint32_t bits) {
  const float x = my_ops::bits_float(bits);
  count.add(my_ops::e2m1_encode(x) == __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest));
}

void compare_e4m3(Count& count, uint32_t bits) {
  const float x = my_ops::bits_float(bits);
  count.add(my_ops::e4m3_encode(x) == __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
}

float widened(__half_raw half) { return __half2float(__half(half)); }

}  // namespace

int main() {
  // 0.03125 to 8: every rounding decision.
  constexpr uint32_t kFrom = 0x3D000000u, kTo = 0x41000000u;
  {
    Count count{"e2m1_dense"};
    for (uint32_t bits = kFrom; bits <= kTo; ++bits) compare_e2m1(count, bits);
  }
  {
    Count count{"e2m1_sparse"};  // every exponent, both signs, Inf included
    for (uint32_t bits = 0; bits <= 0x7F800000u; bits += 2048u) {
      compare_e2m1(count, bits);
      compare_e2m1(count, bits | 0x80000000u);
    }
  }
  {
    Count count{"e4m3_dense"};  // below half the smallest subnormal to above the largest value
    for (uint32_t bits = 0x3A000000u; bits <= 0x44000000u; bits += 3u) compare_e4m3(count, bits);
    for (uint32_t bits = 0; bits <= 0x7F800000u; bits += 1024u) compare_e4m3(count, bits);
  }
  {
    Count count{"decode"};
    for (int code = 0; code < 16; ++code) {
      const float expected = widened(__nv_cvt_fp4_to_halfraw(code, __NV_E2M1));
      count.add(my_ops::float_bits(my_ops::e2m1_decode(code)) == my_ops::float_bits(expected));
    }
    for (int byte = 0; byte < 256; ++byte) {
      if ((byte & 0x7F) == 0x7F) continue;  // NaN has many bit patterns
      const float expected = widened(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3));
      count.add(my_ops::float_bits(my_ops::e4m3_decode(byte)) == my_ops::float_bits(expected));
    }
  }
  return 0;
}
