// Device only: packs of elements that move in one memory access. Needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {

// The widest access of one thread: LDG.128 and STG.128.
constexpr int kVecBytes = 16;

template <typename T>
constexpr int kVecElements = sizeof(T) < kVecBytes ? kVecBytes / sizeof(T) : 1;

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T elements[N];
};

// Elements [i, i + N) of `data`, in one access where they all lie before `end`; those at or past
// `end` are zero. `data + i` must be aligned to the pack.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* data, int64_t i, int64_t end) {
  if (i + N <= end) return *reinterpret_cast<const Vec<T, N>*>(data + i);
  Vec<T, N> vec{};
#pragma unroll
  for (int e = 0; e < N; ++e) {
    if (i + e < end) vec.elements[e] = data[i + e];
  }
  return vec;
}

// Writes the elements of `vec` that lie before `end`.
template <int N, typename T>
__device__ __forceinline__ void store_vec(T* data, int64_t i, int64_t end, const Vec<T, N>& vec) {
  if (i + N <= end) {
    *reinterpret_cast<Vec<T, N>*>(data + i) = vec;
    return;
  }
#pragma unroll
  for (int e = 0; e < N; ++e) {
    if (i + e < end) data[i + e] = vec.elements[e];
  }
}

// Host: whether every pointer allows 16-byte accesses.
template <typename... T>
bool aligned_to_vec(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % kVecBytes == 0) && ...);
}

}  // namespace my_ops
