// How a forward is launched: the configuration as a function of the width, and the launch. Host
// side of .cu files, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/launch.cuh"
#include "rmsnorm/device_limits.h"
#include "rmsnorm/forward_kernel.cuh"
#include "rmsnorm/forward_staged_kernel.cuh"

namespace my_ops {

enum class ForwardKind {
  registers,     // x waits in registers: forward_kernel.cuh
  staged,        // x waits in shared memory: forward_staged_kernel.cuh
  two_launches,  // x is read twice
};

struct ForwardConfig {
  ForwardKind kind;
  int lanes;              // lanes that share a row; 0: whole blocks
  int vectors;            // chunks that a thread holds; 0: however many there are
  int threads;            // of a block
  int slices;             // blocks that share a row
  bool overlaps = false;  // begins while the kernel in front of it still ends
};

inline ForwardConfig forward_block_config(int64_t chunks, int vectors, int max_cluster_blocks) {
  const int64_t block_chunks = kForwardMaxThreads * vectors;
  int slices = 1;
  while (slices < max_cluster_blocks && slices * block_chunks < chunks) slices *= 2;
  if (slices * block_chunks < chunks) {
    const int64_t many = (chunks + block_chunks - 1) / block_chunks;
    return {ForwardKind::two_launches, 0, vectors, kForwardMaxThreads, static_cast<int>(many)};
  }
  const int64_t slice_chunks = (chunks + slices - 1) / slices;
  const int64_t warps = (slice_chunks + kWarpSize * vectors - 1) / (kWarpSize * vectors);
  return {ForwardKind::registers, 0, vectors, static_cast<int>(warps) * kWarpSize, slices};
}

// Packs of a row; 0: it is taken by elements. float64, which gradcheck needs and nobody runs fast,
// always is: two thirds of its kernels need not be compiled.
template <typename x_t>
int64_t row_packs(int64_t H) {
  constexpr int N = kChunkElements<x_t>;
  return sizeof(x_t) > 4 || H % N != 0 ? 0 : H / N;
}

// A function of the width and the device only, never of the number of rows: a row must have the
// same bits in every batch.
//
//   row bytes, in packs   who owns a row
//   <= 128                8 lanes, 1 pack each
//   <= 512                8 lanes, 4 packs each: four rows a warp, 64 bytes in flight a lane
//   <= 2 K                a warp, 4 packs a lane
//   <= 16 K               a block of 64 to 256 threads, 4 packs a thread
//   <= 32 K               a block of up to 256 threads, 8 packs a thread
//   <= 512 K              2, 4, 8 or 16 blocks of 256 threads in a cluster, staged
//   <= 1.7 M              16 such blocks of 512 threads; fewer where clusters or shared memory are
//                         smaller
//   more                  slices of 64 K, two launches
//
//   columns, one by one   who owns a row
//   <= 128                16 lanes, 8 columns each; 8 lanes read four rows at a time, 30 % slower
//   <= 256, <= 1024       a warp, 8 or 32 columns a lane
//   <= 12288              a block of up to 512 threads, 24 columns a thread
//   <= 12288 * 16         2, 4, 8 or 16 such blocks in a cluster
//   more                  slices of 12288, two launches
inline ForwardConfig forward_config(int64_t H, int64_t packs, const DeviceLimits& limits) {
  constexpr auto registers = ForwardKind::registers;
  if (packs == 0) {
    if (H <= 16 * 8) return {registers, 16, 8, 128, 1};
    if (H <= 32 * 8) return {registers, 32, 8, 128, 1};
    if (H <= 32 * 32) return {registers, 32, 32, 128, 1};
    return forward_block_config(H, 24, limits.max_cluster_blocks);
  }
  if (packs <= 8) return {registers, 8, 1, 256, 1};
  if (packs <= 32) return {registers, 8, 4, 256, 1};
  if (packs <= 128) return {registers, 32, 4, 128, 1};
  if (packs <= 1024) return forward_block_config(packs, 4, 1);
  if (packs <= 2048 || limits.max_cluster_blocks == 1) return forward_block_config(packs, 8, 1);

  // Two blocks have to fit on an SM, with what is static.
  constexpr int64_t kWantedPacks = 2048;
  const int64_t max_packs = (limits.shared_bytes_per_block - 4096) / (2 * kChunkBytes) - 1;
  int slices = 2;
  while (slices < limits.max_cluster_blocks && slices * kWantedPacks < packs) slices *= 2;
  if (slices * max_packs < packs) return forward_block_config(packs, 8, 1);
  return {ForwardKind::staged, 0, 0, slices * kWantedPacks < packs ? 512 : 256, slices};
}

// Blocks of one row each that start, and prefetch, while the kernel in front still stores: two on
// each multiprocessor of an H200. 256 rows of 4096 in 2.31 us instead of 2.56, of 8192 in 3.42
// instead of 3.67; but 512 rows of 4096 in 3.79 instead of 3.39.
constexpr int64_t kFewBlocks = 264;

template <typename x_t, typename w_t>
cudaError_t launch_forward_kernel(void (*kernel)(ForwardArgs<x_t, w_t>),
                                  const ForwardArgs<x_t, w_t>& args, const ForwardConfig& config,
                                  int shared_bytes, cudaStream_t stream) {
  const int64_t rows_per_block = config.lanes > 0 ? config.threads / config.lanes : 1;
  const int64_t blocks = (args.rows + rows_per_block - 1) / rows_per_block * config.slices;
  const bool cluster = config.kind != ForwardKind::two_launches && config.slices > 1;
  LaunchOptions options;
  if (cluster) options.cluster = static_cast<unsigned>(config.slices);
  // The staged kernel does not wait: its rows are too large to gain from it.
  options.overlapping = config.overlaps && config.kind != ForwardKind::staged;
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(config.threads);
  launch.dynamicSmemBytes = shared_bytes;
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = launch_attributes(options, attributes);
  cudaError_t error = cudaSuccess;
  if (shared_bytes > 0) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  if (error == cudaSuccess && cluster && config.slices > 8) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  return error != cudaSuccess ? error : cudaLaunchKernelEx(&launch, kernel, args);
}

// The kernel that keeps x in registers, of a configuration. Rows in shifted packs, which are slower
// anyway, make do without the one for the narrowest: fewer chunks a lane change no bits.
template <typename x_t, typename w_t, Access kAccess>
auto forward_register_kernel(const ForwardConfig& config) {
  constexpr auto whole = Phase::whole;
  if constexpr (kAccess == Access::elements) {
    if (config.lanes == 16) return rmsnorm_forward_kernel<x_t, w_t, 16, 8, kAccess, whole>;
    if (config.lanes == 0) return rmsnorm_forward_kernel<x_t, w_t, 0, 24, kAccess, whole>;
    return config.vectors == 8 ? rmsnorm_forward_kernel<x_t, w_t, 32, 8, kAccess, whole>
                               : rmsnorm_forward_kernel<x_t, w_t, 32, 32, kAccess, whole>;
  } else {
    constexpr int kFewest = kAccess == Access::packs ? 1 : 4;
    if (config.lanes == 32) return rmsnorm_forward_kernel<x_t, w_t, 32, 4, kAccess, whole>;
    if (config.lanes == 8) {
      return config.vectors == 1 ? rmsnorm_forward_kernel<x_t, w_t, 8, kFewest, kAccess, whole>
                                 : rmsnorm_forward_kernel<x_t, w_t, 8, 4, kAccess, whole>;
    }
    return config.vectors == 4 ? rmsnorm_forward_kernel<x_t, w_t, 0, 4, kAccess, whole>
                               : rmsnorm_forward_kernel<x_t, w_t, 0, 8, kAccess, whole>;
  }
}

template <Access kAccess, typename x_t, typename w_t>
cudaError_t launch_forward_access(ForwardArgs<x_t, w_t> args, const ForwardConfig& config,
                                  cudaStream_t stream) {
  constexpr int N = kAccessElements<kAccess, x_t>;
  const int64_t chunks = args.H / N;
  args.inverse_H = 1.0 / static_cast<double>(args.H);
  args.slices = config.slices;
  args.slice_chunks = static_cast<int>((chunks + config.slices - 1) / config.slices);
  args.few_blocks = args.rows * config.slices <= kFewBlocks;
  if (config.kind == ForwardKind::registers) {
    return launch_forward_kernel(forward_register_kernel<x_t, w_t, kAccess>(config), args, config,
                                 0, stream);
  }
  if constexpr (kAccess != Access::elements) {
    if (config.kind == ForwardKind::staged) {
      const auto kernel = args.residual == nullptr
                              ? rmsnorm_forward_staged_kernel<x_t, w_t, kAccess, false>
                              : rmsnorm_forward_staged_kernel<x_t, w_t, kAccess, true>;
      return launch_forward_kernel(kernel, args, config, staged_slice_bytes(args.slice_chunks),
                                   stream);
    }
  }
  constexpr int kVectors = kAccess == Access::elements ? 24 : 8;
  const cudaError_t error = launch_forward_kernel(
      rmsnorm_forward_kernel<x_t, w_t, 0, kVectors, kAccess, Phase::sums>, args, config, 0, stream);
  if (error != cudaSuccess) return error;
  return launch_forward_kernel(rmsnorm_forward_kernel<x_t, w_t, 0, kVectors, kAccess, Phase::apply>,
                               args, config, 0, stream);
}

// Launches with the configuration of the width. `aligned`: all rows begin at 16 bytes.
// `args.partial_sums` must hold rows * slices doubles for two launches.
template <typename x_t, typename w_t>
cudaError_t launch_forward(const ForwardArgs<x_t, w_t>& args, const ForwardConfig& config,
                           bool aligned, cudaStream_t stream) {
  if constexpr (sizeof(x_t) <= 4) {
    if (row_packs<x_t>(args.H) > 0) {
      return aligned ? launch_forward_access<Access::packs>(args, config, stream)
                     : launch_forward_access<Access::shifted_packs>(args, config, stream);
    }
  }
  return launch_forward_access<Access::elements>(args, config, stream);
}

}  // namespace my_ops
