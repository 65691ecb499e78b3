// How a backward is launched. Host side of .cu files, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>

#include "common/launch.cuh"
#include "rmsnorm/backward_kernels.cuh"
#include "rmsnorm/weight_gradient.cuh"

namespace my_ops {

// The kernel of a configuration, and how many rows of partial_weight ("parts") it writes.
template <typename x_t>
struct BackwardLauncher {
  using Args = BackwardArgs<x_t>;
  using Kernels = BackwardKernels<x_t>;
  using Kernel = typename Kernels::Kernel;
  BackwardConfig config;
  Rows lie;
  int64_t parts;

  static cudaError_t plan(BackwardConfig config, Rows lie, int64_t rows, int64_t H,
                          const DeviceLimits& limits, BackwardLauncher& launcher) {
    // Shifted rows have no kernel with 2 chunks a thread; with 4 the sums have the same bits.
    if (config.lanes > 0 && lie == Rows::shifted) config.vectors = 4;
    int resident = 0;
    const cudaError_t error = resident_parts(config, lie, limits, resident);
    launcher = {config, lie, parts_for(config, rows, row_period(lie, H), resident, limits)};
    return error;
  }

  cudaError_t launch(Args args, cudaStream_t stream) const {
    const int64_t chunks = (args.H + kChunkElements<x_t> - 1) / kChunkElements<x_t>;
    const int warps = config.lanes > 0 ? 1 : config.threads / kWarpSize;
    args.inverse_H = 1.0 / static_cast<double>(args.H);
    args.slices = config.slices;
    args.slice_chunks = static_cast<int>((chunks + config.slices - 1) / config.slices);
    args.warp_chunks = (args.slice_chunks + warps - 1) / warps;
    args.vectors = wide_vectors(config, args.slice_chunks);
    if (!config.whole) {
      const cudaError_t error = launch_kernel(Kernels::of(config, lie, Phase::sums), args, stream);
      if (error != cudaSuccess) return error;
    }
    const Phase phase = config.whole ? Phase::whole : Phase::apply;
    return launch_kernel(Kernels::of(config, lie, phase), args, stream);
  }

 private:
  // Rows so many apart begin equally far from a pack's beginning, where that matters.
  static int64_t row_period(Rows lie, int64_t H) {
    constexpr int64_t N = kChunkElements<x_t>;
    return has_edges(lie) ? N / std::gcd(N, H) : 1;
  }

  // As many parts as run at the same time, but where rows are more than multiprocessors, at least
  // two rows for each group: a part costs a write and a read of a row of float32.
  static int64_t parts_for(const BackwardConfig& config, int64_t rows, int64_t period,
                           int64_t resident, const DeviceLimits& limits) {
    const int64_t groups = config.lanes > 0 ? config.threads / config.lanes : 1;
    const int64_t once = (rows + groups - 1) / groups;
    const int64_t twice = (once + 1) / 2;
    const int64_t spread = std::min<int64_t>(once, limits.multiprocessors / config.slices);
    const int64_t parts = std::max<int64_t>(1, std::min(resident, std::max(twice, spread)));
    if (parts >= once) return parts;
    const int64_t multiple = std::max<int64_t>(1, period / groups);
    return std::min(once, std::max<int64_t>(multiple, parts / multiple * multiple));
  }

  static int block_threads(const BackwardConfig& config) {
    return config.threads + (config.wide ? kWideExtraThreads : 0);
  }
  static int shared_bytes(const BackwardConfig& config, Rows lie) {
    return config.threads * (config.wide ? wide_thread_bytes(config.vectors)
                                         : own_packs<x_t>(config.vectors, lie) * kChunkBytes);
  }

  cudaError_t launch_kernel(Kernel kernel, const Args& args, cudaStream_t stream) const {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t launch = launch_config(config, lie, attributes);
    launch.gridDim = dim3(static_cast<unsigned>(parts * config.slices));
    launch.stream = stream;
    const cudaError_t error = opt_in(kernel, config, lie);
    return error != cudaSuccess ? error : cudaLaunchKernelEx(&launch, kernel, args);
  }

  static cudaLaunchConfig_t launch_config(const BackwardConfig& config, Rows lie,
                                          cudaLaunchAttribute (&attributes)[2]) {
    LaunchOptions options;
    if (config.wide) options.cluster = static_cast<unsigned>(config.slices);
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(config.slices);
    launch.blockDim = dim3(block_threads(config));
    launch.dynamicSmemBytes = shared_bytes(config, lie);
    launch.attrs = attributes;
    launch.numAttrs = launch_attributes(options, attributes);
    return launch;
  }

  static cudaError_t opt_in(Kernel kernel, const BackwardConfig& config, Rows lie) {
    constexpr int kWithoutOptIn = 47 * 1024;  // 48 KB less what a kernel has statically
    cudaError_t error = cudaSuccess;
    if (shared_bytes(config, lie) > kWithoutOptIn) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared_bytes(config, lie));
    }
    if (error == cudaSuccess && config.wide && config.slices > 8) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    return error;
  }

  // Asking the driver takes microseconds, so each thread remembers the answers.
  static cudaError_t resident_parts(const BackwardConfig& config, Rows lie,
                                    const DeviceLimits& limits, int& resident) {
    thread_local std::map<std::tuple<int, int, int, int, int, Rows>, int> known;
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    int& answer = known[{device, config.lanes, config.vectors, config.threads, config.slices, lie}];
    if (answer == 0) {
      const Kernel asked = Kernels::of(config, lie, config.whole ? Phase::whole : Phase::apply);
      error = opt_in(asked, config, lie);
      if (error != cudaSuccess) return error;
      cudaLaunchAttribute attributes[2];
      const cudaLaunchConfig_t launch = launch_config(config, lie, attributes);
      if (launch.numAttrs > 0) {
        error = cudaOccupancyMaxActiveClusters(&answer, asked, &launch);
      } else {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&answer, asked, block_threads(config),
                                                              launch.dynamicSmemBytes);
        answer = std::max(1, answer * limits.multiprocessors / config.slices);
      }
    }
    resident = answer;
    return error;
  }
};

// Launches the second stage, overlapping with the kernel before it where the device can.
template <typename acc_t, typename w_t>
cudaError_t launch_weight_kernel(const acc_t* partial_weight, w_t* grad_weight, int64_t parts,
                                 int64_t H, bool overlaps, cudaStream_t stream) {
  // About 16 loads a thread, all in flight together; few parts need no sharing.
  int sharing = 1;
  while (sharing < kWeightMaxWarps && sharing * 16 < parts) sharing *= 2;
  const int warps = sharing < 8 ? 8 : sharing;
  const int64_t columns = warps / sharing * kWarpSize;
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>((H + columns - 1) / columns));
  launch.blockDim = dim3(warps * kWarpSize);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = launch_attributes({1, overlaps}, attributes);
  return cudaLaunchKernelEx(&launch, rmsnorm_weight_kernel<acc_t, w_t>, partial_weight, grad_weight,
                            parts, H, sharing);
}

}  // namespace my_ops
