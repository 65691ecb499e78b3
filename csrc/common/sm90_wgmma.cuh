// Device only, sm_90a: the warpgroup's matrix instruction. D [64, kCols] in registers, A [64, 32
// bytes] and B [kCols, 32 bytes] in shared memory, K-major; with elements of 16 bits they may also
// be outer-major, K rows of 64 or kCols elements. A in registers: sm90_wgmma_registers.cuh. Needs
// no torch.
#pragma once

#include <cstdint>

namespace my_ops {
namespace sm90 {

// How a tile of rows of kRowBytes (64 or 128) lies in shared memory: rows one after the other, the
// 16-byte chunks of a row permuted so that eight rows' chunks of one K fall on all banks.
// This is the hardware's 64- or 128-byte swizzle; a tile starts at a multiple of 8 rows.
template <int kRowBytes>
__host__ __device__ constexpr int swizzled_chunk(int row, int chunk) {
  static_assert(kRowBytes == 64 || kRowBytes == 128, "the swizzles in use");
  return chunk ^ (kRowBytes == 128 ? row % 8 : row / 2 % 4);
}

// Describes such a tile to the instruction. A step of 32 bytes along K adds kDescriptorStep.
constexpr uint64_t kDescriptorStep = 32 >> 4;

template <int kRowBytes>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t shared_address) {
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr uint64_t kEightRows = 8 * kRowBytes >> 4;
  return kSwizzle << 62 | kEightRows << 32 | uint64_t{1} << 16 | (shared_address & 0x3FFFF) >> 4;
}

// The same of an outer-major tile: blocks of 64 elements by `depth` rows of K, block_bytes apart,
// with the 128-byte swizzle. A step of 16 rows of K adds kOuterDescriptorStep.
constexpr uint64_t kOuterDescriptorStep = 16 * 128 >> 4;

__device__ __forceinline__ uint64_t outer_tile_descriptor(uint32_t shared_address,
                                                          int block_bytes) {
  constexpr uint64_t kEightRows = 8 * 128 >> 4;
  return uint64_t{1} << 62 | kEightRows << 32 | static_cast<uint64_t>(block_bytes >> 4) << 16 |
         (shared_address & 0x3FFFF) >> 4;
}

// The same in two parts, of which only the first depends on the address: sums of it have 32 bits.
__device__ __forceinline__ uint32_t tile_address(uint32_t shared_address) {
  return static_cast<uint32_t>(tile_descriptor<128>(shared_address));
}

template <int kRowBytes>
__device__ __forceinline__ uint64_t descriptor_at(uint32_t tile_address) {
  return tile_descriptor<kRowBytes>(0) >> 32 << 32 | tile_address;
}

// Before the first instruction, and after registers of D were touched.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses of D across this point.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

enum class Element { bf16, fp16, tf32 };

template <Element kElement>
constexpr int kElementBytes = kElement == Element::tf32 ? 4 : 2;

// D = A B^T, or D += A B^T; kOuterA and kOuterB say which operands are outer-major.
template <Element kElement, int kCols, bool kOuterA = false, bool kOuterB = false>
struct Wgmma;

// The list of D's registers in the instruction's text, and as its operands.

#define MY_OPS_D64                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define MY_OPS_D96                                                                               \
  MY_OPS_D64                                                                                     \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MY_OPS_D128                                                                            \
  MY_OPS_D96                                                                                   \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"
#define MY_OPS_D_OPERANDS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MY_OPS_D_OPERANDS_8(i) MY_OPS_D_OPERANDS_4(i), MY_OPS_D_OPERANDS_4(i + 4)
#define MY_OPS_D_OPERANDS_16(i)                                                   \
  MY_OPS_D_OPERANDS_4(i), MY_OPS_D_OPERANDS_4(i + 4), MY_OPS_D_OPERANDS_4(i + 8), \
      MY_OPS_D_OPERANDS_4(i + 12)
#define MY_OPS_D_OPERANDS_32(i) MY_OPS_D_OPERANDS_16(i), MY_OPS_D_OPERANDS_16(i + 16)
#define MY_OPS_D_OPERANDS_64 MY_OPS_D_OPERANDS_32(0), MY_OPS_D_OPERANDS_32(32)
#define MY_OPS_D_OPERANDS_96 MY_OPS_D_OPERANDS_64, MY_OPS_D_OPERANDS_32(64)
#define MY_OPS_D_OPERANDS_128 MY_OPS_D_OPERANDS_96, MY_OPS_D_OPERANDS_32(96)

// `a`, `b` and `last` are the numbers of the operands that follow the kRegisters of D; `major`
// is the 16-bit types' choice of how A and B lie.
#define MY_OPS_WGMMA(element, cols, registers, type, depth, major, a, b, last)                \
  template <bool kOuterA, bool kOuterB>                                                       \
  struct Wgmma<Element::element, cols, kOuterA, kOuterB> {                                    \
    static __device__ __forceinline__ void run(float (&d)[registers], uint64_t A, uint64_t B, \
                                               bool accumulate) {                             \
      asm volatile(                                                                           \
          "{\n.reg .pred accumulate;\n"                                                       \
          "setp.ne.b32 accumulate, %" #last                                                   \
          ", 0;\n"                                                                            \
          "wgmma.mma_async.sync.aligned.m64n" #cols "k" #depth ".f32." type "." type          \
          " {" MY_OPS_D##registers "}, %" #a ", %" #b ", accumulate, 1, 1" major ";\n}"       \
          : MY_OPS_D_OPERANDS_##registers                                                     \
          : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)), "n"(kOuterA), "n"(kOuterB));   \
    }                                                                                         \
  }

MY_OPS_WGMMA(bf16, 128, 64, "bf16", 16, ", %67, %68", 64, 65, 66);
MY_OPS_WGMMA(bf16, 192, 96, "bf16", 16, ", %99, %100", 96, 97, 98);
MY_OPS_WGMMA(bf16, 256, 128, "bf16", 16, ", %131, %132", 128, 129, 130);
MY_OPS_WGMMA(fp16, 128, 64, "f16", 16, ", %67, %68", 64, 65, 66);
MY_OPS_WGMMA(fp16, 192, 96, "f16", 16, ", %99, %100", 96, 97, 98);
MY_OPS_WGMMA(fp16, 256, 128, "f16", 16, ", %131, %132", 128, 129, 130);
MY_OPS_WGMMA(tf32, 128, 64, "tf32", 8, "", 64, 65, 66);
MY_OPS_WGMMA(tf32, 192, 96, "tf32", 8, "", 96, 97, 98);
MY_OPS_WGMMA(tf32, 256, 128, "tf32", 8, "", 128, 129, 130);

}  // namespace sm90
}  // namespace my_ops
