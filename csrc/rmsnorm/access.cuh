// How the threads of a forward reach their rows. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/chunk.cuh"

namespace my_ops {

// Packs or elements follows from the width of a row alone. Packs are shifted where x, the residual
// or the weight is not aligned, which changes no bits: a view has those of its contiguous copy.
enum class Access {
  packs,          // the width is a multiple of 16 bytes and every row begins at one
  shifted_packs,  // the width is, but rows begin at any element
  elements,       // any width: neighbouring lanes take neighbouring elements
};

template <Access kAccess, typename x_t>
constexpr int kAccessElements = kAccess == Access::elements ? 1 : kChunkElements<x_t>;

// 16 of the 32 bytes of `low` and `high`, from byte `bytes` on (below 16, whole elements).
template <int kElementBytes>
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, unsigned bytes) {
  const bool by_8 = bytes & 8;
  unsigned words[6] = {by_8 ? low.z : low.x,  by_8 ? low.w : low.y,   by_8 ? high.x : low.z,
                       by_8 ? high.y : low.w, by_8 ? high.z : high.x, by_8 ? high.w : high.y};
  if constexpr (kElementBytes <= 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = bytes & 4 ? words[i + 1] : words[i];
  }
  if constexpr (kElementBytes <= 2) {
    const unsigned bits = (bytes & 2) * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bits);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Keeps the compiler from seeing elements in `pack`. It gives each element of 16 bits a register
// and merges them again wherever a chunk comes out of a branch: a quarter of a kernel's
// instructions.
__device__ __forceinline__ uint4 as_words(uint4 pack) {
  asm("" : "+r"(pack.x), "+r"(pack.y), "+r"(pack.z), "+r"(pack.w));
  return pack;
}

// Loads the chunks that lie `stride` apart, the v-th at `from` + v * stride * N, where
// v * stride < `left`; fills the others with `fill`.
//
// Shifted packs: whole 16-byte granules are loaded and shifted into place; one access an element
// would reach 40 % of the memory's speed. (The granule in which a tensor begins may be read, as
// memory is handed out in granules. That in which it ends may not be its own, so the last chunk
// comes by elements.) Loads come before shifts, a few chunks at a time, and none depends on a
// branch: otherwise each waits for the one before. With kLastOnce there is one place where the last
// chunk is loaded, not one for each v: 84 % of the copy rate at 3584 columns from an odd one on,
// without it 79 %.
template <Access kAccess, bool kLastOnce = true, typename scalar_t, int N, int kCount>
__device__ __forceinline__ void load_run(Vec<scalar_t, N> (&run)[kCount], const scalar_t* from,
                                         int left, int stride, float fill) {
  Vec<scalar_t, N> filled;
#pragma unroll
  for (int j = 0; j < N; ++j) filled.elements[j] = narrow<scalar_t>(fill);
  if constexpr (kAccess == Access::elements) {
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      run[v] = filled;
      if (v * stride < left) run[v].elements[0] = from[v * stride];
    }
  } else if constexpr (kAccess == Access::packs) {
    constexpr int kPacks = sizeof(run[0]) / kChunkBytes;
    const uint4 filled_pack = *reinterpret_cast<const uint4*>(&filled);
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        uint4 pack = filled_pack;
        if (v * stride < left) pack = reinterpret_cast<const uint4*>(from + v * stride * N)[i];
        reinterpret_cast<uint4*>(&run[v])[i] = as_words(pack);
      }
    }
  } else {
    constexpr int kPacks = sizeof(run[0]) / kChunkBytes;
    const uint4 filled_pack = *reinterpret_cast<const uint4*>(&filled);
    constexpr int kBatch = kCount < 4 / kPacks ? kCount : 4 / kPacks;
    static_assert(kCount % kBatch == 0);
    const unsigned shift = reinterpret_cast<std::uintptr_t>(from) % kChunkBytes;
    const auto* granules =
        reinterpret_cast<const uint4*>(reinterpret_cast<const unsigned char*>(from) - shift);
#pragma unroll
    for (int batch = 0; batch < kCount; batch += kBatch) {
      uint4 loaded[kBatch][kPacks + 1];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int v = batch + b;
        const uint4* granule = granules + v * stride * kPacks;
        const int last = shift > 0 && v * stride + 1 < left ? kPacks : kPacks - 1;
#pragma unroll
        for (int i = 0; i <= kPacks; ++i) {
          loaded[b][i] = filled_pack;
          if (v * stride < left) loaded[b][i] = granule[i < kPacks ? i : last];
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
          reinterpret_cast<uint4*>(&run[batch + b])[i] =
              as_words(shifted<sizeof(scalar_t)>(loaded[b][i], loaded[b][i + 1], shift));
        }
      }
    }
    if constexpr (kLastOnce) {
      const scalar_t* last = nullptr;
#pragma unroll
      for (int v = 0; v < kCount; ++v) {
        if (shift > 0 && v * stride + 1 == left) last = from + v * stride * N;
      }
      if (last == nullptr) return;
      Vec<scalar_t, N> chunk;
#pragma unroll
      for (int j = 0; j < N; ++j) chunk.elements[j] = last[j];
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const uint4 pack = as_words(reinterpret_cast<const uint4*>(&chunk)[i]);
#pragma unroll
        for (int v = 0; v < kCount; ++v) {
          if (v * stride + 1 == left) reinterpret_cast<uint4*>(&run[v])[i] = pack;
        }
      }
    } else {
#pragma unroll
      for (int v = 0; v < kCount; ++v) {
        if (shift > 0 && v * stride + 1 == left) {
#pragma unroll
          for (int j = 0; j < N; ++j) run[v].elements[j] = from[v * stride * N + j];
        }
      }
    }
  }
}

// Waits until all of `run` is there. Whatever depends on what was loaded will do: here a sleep of
// no time, under a condition that hardly ever holds and that the compiler cannot know.
template <typename Chunk, int kCount>
__device__ __forceinline__ void wait_for_loads(const Chunk (&run)[kCount]) {
  unsigned bits = 0;
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    const auto* words = reinterpret_cast<const unsigned*>(&run[v]);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Chunk) / sizeof(unsigned)); ++i) bits |= words[i];
  }
  asm volatile(
      "{\n"
      ".reg .pred rare;\n"
      "setp.eq.u32 rare, %0, 0x7fffffff;\n"
      "@rare nanosleep.u32 0;\n"
      "}\n" ::"r"(bits));
}

// y and the sum are dense and our own, so their packs are aligned wherever x comes in packs. Spelt
// out, as the compiler cuts such a store into words where the chunk comes out of a branch.
__device__ __forceinline__ void store_pack(void* data, const uint4& pack) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(data), "r"(pack.x), "r"(pack.y),
               "r"(pack.z), "r"(pack.w));
}
template <int N, typename scalar_t>
__device__ __forceinline__ void store(scalar_t* data, const Vec<scalar_t, N>& chunk) {
  if constexpr (sizeof(chunk) % kChunkBytes == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(chunk) / kChunkBytes); ++i) {
      store_pack(reinterpret_cast<uint4*>(data) + i, reinterpret_cast<const uint4*>(&chunk)[i]);
    }
  } else {
    *reinterpret_cast<Vec<scalar_t, N>*>(data) = chunk;
  }
}

}  // namespace my_ops
