// Philox-4x32-10, the counter-based random generator, for the host and the device. Needs no torch.
//
// The same (seed, counter) gives the same four words everywhere, so random results depend neither
// on the device nor on how the work is divided. Known answers: tests/test_fp4_vectors.py.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MY_OPS_PHILOX __host__ __device__ __forceinline__
#else
#define MY_OPS_PHILOX inline
#endif

namespace my_ops {

struct PhiloxWords {
  uint32_t word[4];
};

// The high counter words are zero: 2^64 counters are enough for one seed.
MY_OPS_PHILOX PhiloxWords philox_4x32_10(uint64_t seed, uint64_t counter) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kKeyStep0 = 0x9E3779B9u, kKeyStep1 = 0xBB67AE85u;
  PhiloxWords c{{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0u, 0u}};
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * c.word[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * c.word[2];
    c = {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ key0, static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ key1,
          static_cast<uint32_t>(product0)}};
    key0 += kKeyStep0;
    key1 += kKeyStep1;
  }
  return c;
}

}  // namespace my_ops
