// Device only, sm_90a: the warpgroup's matrix instruction with A [64, 32 bytes] in registers, and B
// [kCols, 32 bytes] in shared memory, K-major. Needs no torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/sm90_wgmma.cuh"

namespace my_ops {
namespace sm90 {

#define MY_OPS_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MY_OPS_D16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MY_OPS_D32                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// Elements are __nv_bfloat16, __half, or float: TF32. Of A, thread 4 g + t of the warp with rows
// from `row` on holds word (4 bytes along K) t of rows row + g and row + g + 8, then word t + 4 of
// both. These registers must stay untouched until the instruction is waited for.
template <typename scalar_t, int kCols>
struct WgmmaRegisters;

// a0 to a3, b and acc are the numbers of the operands that follow the registers of D.
#define MY_OPS_WGMMA_A_IN_REGISTERS(scalar_t, cols, registers, types, major, a0, a1, a2, a3, b, \
                                    acc, ...)                                                   \
  template <>                                                                                   \
  struct WgmmaRegisters<scalar_t, cols> {                                                       \
    static __device__ __forceinline__ void run(float (&d)[registers], const uint32_t (&A)[4],   \
                                               uint64_t B, bool accumulate) {                   \
      asm volatile(                                                                             \
          "{\n.reg .pred accumulate;\n"                                                         \
          "setp.ne.b32 accumulate, %" #acc                                                      \
          ", 0;\n"                                                                              \
          "wgmma.mma_async.sync.aligned.m64n" #cols types " {" MY_OPS_D##registers              \
          "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", accumulate, 1, 1" major ";\n}" \
          : __VA_ARGS__                                                                         \
          : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B),                                 \
            "r"(static_cast<int>(accumulate)));                                                 \
    }                                                                                           \
  }
#define MY_OPS_WGMMA_REGISTERS(scalar_t, cols, registers, operands, type, a0, a1, a2, a3, b, acc) \
  MY_OPS_WGMMA_A_IN_REGISTERS(scalar_t, cols, registers, "k16.f32." type "." type, ", 0", a0, a1, \
                              a2, a3, b, acc, operands)
#define MY_OPS_WGMMA_TF32_REGISTERS(cols, registers, operands, a0, a1, a2, a3, b, acc)           \
  MY_OPS_WGMMA_A_IN_REGISTERS(float, cols, registers, "k8.f32.tf32.tf32", "", a0, a1, a2, a3, b, \
                              acc, operands)

MY_OPS_WGMMA_REGISTERS(__nv_bfloat16, 16, 8, MY_OPS_D_OPERANDS_8(0), "bf16", 8, 9, 10, 11, 12, 13);
MY_OPS_WGMMA_REGISTERS(__half, 16, 8, MY_OPS_D_OPERANDS_8(0), "f16", 8, 9, 10, 11, 12, 13);
MY_OPS_WGMMA_REGISTERS(__nv_bfloat16, 32, 16, MY_OPS_D_OPERANDS_16(0), "bf16", 16, 17, 18, 19, 20,
                       21);
MY_OPS_WGMMA_REGISTERS(__half, 32, 16, MY_OPS_D_OPERANDS_16(0), "f16", 16, 17, 18, 19, 20, 21);
MY_OPS_WGMMA_REGISTERS(__nv_bfloat16, 64, 32, MY_OPS_D_OPERANDS_32(0), "bf16", 32, 33, 34, 35, 36,
                       37);
MY_OPS_WGMMA_REGISTERS(__nv_bfloat16, 128, 64, MY_OPS_D_OPERANDS_64, "bf16", 64, 65, 66, 67, 68,
                       69);
MY_OPS_WGMMA_REGISTERS(__nv_bfloat16, 192, 96, MY_OPS_D_OPERANDS_96, "bf16", 96, 97, 98, 99, 100,
                       101);
MY_OPS_WGMMA_REGISTERS(__half, 192, 96, MY_OPS_D_OPERANDS_96, "f16", 96, 97, 98, 99, 100, 101);
MY_OPS_WGMMA_REGISTERS(__nv_bfloat16, 256, 128, MY_OPS_D_OPERANDS_128, "bf16", 128, 129, 130, 131,
                       132, 133);
MY_OPS_WGMMA_REGISTERS(__half, 64, 32, MY_OPS_D_OPERANDS_32(0), "f16", 32, 33, 34, 35, 36, 37);
MY_OPS_WGMMA_REGISTERS(__half, 128, 64, MY_OPS_D_OPERANDS_64, "f16", 64, 65, 66, 67, 68, 69);
MY_OPS_WGMMA_REGISTERS(__half, 256, 128, MY_OPS_D_OPERANDS_128, "f16", 128, 129, 130, 131, 132,
                       133);
MY_OPS_WGMMA_TF32_REGISTERS(128, 64, MY_OPS_D_OPERANDS_64, 64, 65, 66, 67, 68, 69);
MY_OPS_WGMMA_TF32_REGISTERS(192, 96, MY_OPS_D_OPERANDS_96, 96, 97, 98, 99, 100, 101);
MY_OPS_WGMMA_TF32_REGISTERS(256, 128, MY_OPS_D_OPERANDS_128, 128, 129, 130, 131, 132, 133);

}  // namespace sm90
}  // namespace my_ops
