// How a backward is launched: the configuration as a function of the width, and the launches. Host
// side of .cu files, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "rmsnorm/backward_kernel.cuh"
#include "rmsnorm/device_limits.h"

namespace my_ops {

struct BackwardConfig {
  int lanes;    // lanes that share a row; 0: whole blocks
  int threads;  // of a block
  int slices;   // blocks that share a row
  bool whole;   // false: the row does not fit a cluster, two launches
};

// A function of the width and the device only, never of the number of rows, so that a row's grad_x
// has the same bits in every batch. A chunk is 16 bytes of x, a thread holds `vectors` of them.
//
//   columns (2 and 4 bytes)  who owns a row
//   <= 256                   8 lanes
//   <= 1024                  a warp
//   <= 16384                 a block of up to 512 threads, fewer where shared memory is small
//   <= 16384 * 16            2, 4, 8 or 16 such blocks in a cluster
//   more                     slices of such blocks, two launches
inline BackwardConfig backward_config(int64_t chunks, int vectors, const DeviceLimits& limits) {
  constexpr int kLaneThreads = 128;  // 52 KB of ring: four blocks on an SM, one on a small GPU
  if (chunks <= 8 * vectors) return {8, kLaneThreads, 1, true};
  if (chunks <= 32 * vectors) return {32, kLaneThreads, 1, true};
  constexpr int kStaticSharedBytes = 17 * 1024;
  const int fitting = (limits.shared_bytes_per_block - kStaticSharedBytes) / kRingBytesPerThread;
  const int max_threads = std::min(kBackwardMaxThreads, fitting / 32 * 32);
  const int64_t block_chunks = static_cast<int64_t>(max_threads) * vectors;
  int slices = 1;
  while (slices < limits.max_cluster_blocks && slices * block_chunks < chunks) slices *= 2;
  if (slices * block_chunks < chunks) {
    return {0, max_threads, static_cast<int>((chunks + block_chunks - 1) / block_chunks), false};
  }
  const int64_t slice_chunks = (chunks + slices - 1) / slices;
  const int64_t threads = (slice_chunks + vectors - 1) / vectors;
  return {0, static_cast<int>((threads + 31) / 32 * 32), slices, true};
}

// The kernel of a configuration, and how many rows of partial_weight ("parts") it writes.
template <typename x_t, typename w_t>
struct BackwardLauncher {
  using Args = BackwardArgs<x_t, w_t>;
  using Kernel = void (*)(Args);
  BackwardConfig config;
  bool aligned;
  int64_t parts;

  // As many parts as run at the same time, but no more than one for every few rows: a part costs
  // a write and a read of a row of float32.
  static cudaError_t plan(const BackwardConfig& config, bool aligned, int64_t rows,
                          const DeviceLimits& limits, BackwardLauncher& launcher) {
    constexpr int64_t kMinRowsPerGroup = 4;
    int resident = 0;
    const cudaError_t error = resident_parts(config, limits, resident);
    const int64_t groups = config.lanes > 0 ? config.threads / config.lanes : 1;
    const int64_t rows_per_part = groups * kMinRowsPerGroup;
    const int64_t wanted = (rows + rows_per_part - 1) / rows_per_part;
    launcher = {config, aligned, std::max<int64_t>(1, std::min<int64_t>(resident, wanted))};
    return error;
  }

  cudaError_t launch(Args args, cudaStream_t stream) const {
    const int64_t chunks = (args.H + kChunkElements<x_t> - 1) / kChunkElements<x_t>;
    args.inverse_H = 1.0 / static_cast<double>(args.H);
    args.slices = config.slices;
    args.slice_chunks = static_cast<int>((chunks + config.slices - 1) / config.slices);
    if (!config.whole) {
      const Kernel sums = aligned ? rmsnorm_backward_kernel<x_t, w_t, 0, true, Phase::sums>
                                  : rmsnorm_backward_kernel<x_t, w_t, 0, false, Phase::sums>;
      const cudaError_t error = launch_kernel(sums, args, stream);
      if (error != cudaSuccess) return error;
    }
    return launch_kernel(aligned ? kernel<true>(config) : kernel<false>(config), args, stream);
  }

 private:
  template <bool kAligned>
  static Kernel kernel(const BackwardConfig& config) {
    if (!config.whole) return rmsnorm_backward_kernel<x_t, w_t, 0, kAligned, Phase::apply>;
    if (config.lanes == 8) return rmsnorm_backward_kernel<x_t, w_t, 8, kAligned, Phase::whole>;
    if (config.lanes == 32) return rmsnorm_backward_kernel<x_t, w_t, 32, kAligned, Phase::whole>;
    return rmsnorm_backward_kernel<x_t, w_t, 0, kAligned, Phase::whole>;
  }

  cudaError_t launch_kernel(Kernel kernel, const Args& args, cudaStream_t stream) const {
    cudaLaunchAttribute cluster;
    cudaLaunchConfig_t launch = launch_config(config, cluster);
    launch.gridDim = dim3(static_cast<unsigned>(parts * config.slices));
    launch.stream = stream;
    const cudaError_t error = opt_in(kernel, config);
    return error != cudaSuccess ? error : cudaLaunchKernelEx(&launch, kernel, args);
  }

  static cudaLaunchConfig_t launch_config(const BackwardConfig& config,
                                          cudaLaunchAttribute& cluster) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = config.slices;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(config.slices);
    launch.blockDim = dim3(config.threads);
    launch.dynamicSmemBytes = static_cast<size_t>(config.threads) * kRingBytesPerThread;
    launch.attrs = &cluster;
    launch.numAttrs = config.whole && config.slices > 1 ? 1 : 0;
    return launch;
  }

  static cudaError_t opt_in(Kernel kernel, const BackwardConfig& config) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             config.threads * kRingBytesPerThread);
    if (error == cudaSuccess && config.whole && config.slices > 8) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    return error;
  }

  // Asking the driver takes microseconds, so each thread remembers the answers. Unaligned rows,
  // whose kernel needs about the same registers, go by the kernel of aligned ones.
  static cudaError_t resident_parts(const BackwardConfig& config, const DeviceLimits& limits,
                                    int& resident) {
    thread_local std::map<std::tuple<int, int, int, int>, int> known;
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    int& answer = known[{device, config.lanes, config.threads, config.slices}];
    if (answer == 0) {
      error = opt_in(kernel<true>(config), config);
      if (error != cudaSuccess) return error;
      cudaLaunchAttribute cluster;
      const cudaLaunchConfig_t launch = launch_config(config, cluster);
      if (launch.numAttrs > 0) {
        error = cudaOccupancyMaxActiveClusters(&answer, kernel<true>(config), &launch);
      } else {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &answer, kernel<true>(config), config.threads, launch.dynamicSmemBytes);
        answer = std::max(1, answer * limits.multiprocessors / config.slices);
      }
    }
    resident = answer;
    return error;
  }
};

}  // namespace my_ops
