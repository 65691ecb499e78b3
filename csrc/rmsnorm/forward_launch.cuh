// How a forward is launched: the configuration as a function of the width, and the launch. Host
// side of .cu files, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "rmsnorm/device_limits.h"
#include "rmsnorm/forward_kernel.cuh"

namespace my_ops {

struct ForwardConfig {
  int lanes;    // lanes that share a row; 0: whole blocks
  int vectors;  // chunks that a thread holds
  int threads;  // of a block
  int slices;   // blocks that share a row
  bool whole;   // false: the row does not fit a cluster, two launches
};

// A function of the width and the device only, never of the number of rows: a row must have the
// same bits in every batch. A chunk is 16 bytes of x.
//
//   chunks        row bytes  who owns a row
//   <= 8          <= 128     8 lanes, 1 chunk each
//   <= 32         <= 512     8 lanes, 4 chunks each: four rows a warp, 64 bytes in flight a lane
//   <= 128        <= 2 K     a warp, 4 chunks a lane
//   <= 256        <= 4 K     a warp, 8 chunks a lane
//   <= 2048       <= 32 K    a block of 64 to 256 threads, 8 chunks a thread
//   <= 2048 * 16  <= 512 K   2, 4, 8 or 16 such blocks in a cluster: small blocks overlap better
//   <= 4096 * 16  <= 1 M     blocks of up to 512 threads; also where clusters are smaller
//   more                     slices of 64 K, two launches
inline ForwardConfig forward_config(int64_t chunks, const DeviceLimits& limits) {
  if (chunks <= 8) return {8, 1, 256, 1, true};
  if (chunks <= 32) return {8, 4, 256, 1, true};
  if (chunks <= 128) return {32, 4, 128, 1, true};
  if (chunks <= 256) return {32, 8, 128, 1, true};
  constexpr int kVectors = 8;
  constexpr int64_t kWantedChunks = 256 * kVectors;
  constexpr int64_t kMaxChunks = kForwardMaxThreads * kVectors;
  int slices = 1;
  while (slices < limits.max_cluster_blocks && slices * kWantedChunks < chunks) slices *= 2;
  if (slices * kMaxChunks < chunks) {
    const int64_t many = (chunks + kMaxChunks - 1) / kMaxChunks;
    return {0, kVectors, kForwardMaxThreads, static_cast<int>(many), false};
  }
  const int64_t slice_chunks = (chunks + slices - 1) / slices;
  const int64_t threads = (slice_chunks + kVectors - 1) / kVectors;
  return {0, kVectors, static_cast<int>((threads + 31) / 32 * 32), slices, true};
}

template <typename x_t, typename w_t, int kLanes, int kVectors, bool kAligned, Phase kPhase>
cudaError_t launch_forward_kernel(const ForwardArgs<x_t, w_t>& args, const ForwardConfig& config,
                                  cudaStream_t stream) {
  const auto kernel = rmsnorm_forward_kernel<x_t, w_t, kLanes, kVectors, kAligned, kPhase>;
  const int64_t rows_per_block = kLanes > 0 ? config.threads / kLanes : 1;
  const int64_t blocks = (args.rows + rows_per_block - 1) / rows_per_block * config.slices;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = config.slices;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(config.threads);
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = kPhase == Phase::whole && config.slices > 1 ? 1 : 0;
  if (launch.numAttrs > 0 && config.slices > 8) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  return cudaLaunchKernelEx(&launch, kernel, args);
}

// Fills in the slices of `args` and launches. `args.partial_sums` must hold rows * slices doubles
// where the configuration is not whole.
template <typename x_t, typename w_t>
cudaError_t launch_forward(ForwardArgs<x_t, w_t> args, const ForwardConfig& config, bool aligned,
                           cudaStream_t stream) {
  const int64_t chunks = (args.H + kChunkElements<x_t> - 1) / kChunkElements<x_t>;
  args.slices = config.slices;
  args.slice_chunks = static_cast<int>((chunks + config.slices - 1) / config.slices);
  const auto launch = [&](auto lanes, auto vectors, auto is_aligned, auto phase) {
    return launch_forward_kernel<x_t, w_t, lanes(), vectors(), is_aligned(), phase()>(args, config,
                                                                                      stream);
  };
  constexpr std::integral_constant<Phase, Phase::whole> whole;
  constexpr std::integral_constant<Phase, Phase::sums> sums;
  constexpr std::integral_constant<Phase, Phase::apply> apply;
  constexpr std::integral_constant<int, 0> block;
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 4> four;
  constexpr std::integral_constant<int, 8> eight;
  constexpr std::integral_constant<int, 32> warp;
  const auto launch_aligned_or_not = [&](auto lanes, auto vectors, auto phase) {
    return aligned ? launch(lanes, vectors, std::true_type(), phase)
                   : launch(lanes, vectors, std::false_type(), phase);
  };
  if (!config.whole) {
    const cudaError_t error = launch_aligned_or_not(block, eight, sums);
    return error != cudaSuccess ? error : launch_aligned_or_not(block, eight, apply);
  }
  // Fewer chunks a thread change no bits, so unaligned rows, which are slower anyway, make do with
  // the larger of two kernels.
  if (config.lanes == 0) return launch_aligned_or_not(block, eight, whole);
  if (config.lanes == 8) {
    return aligned && config.vectors == 1 ? launch(eight, one, std::true_type(), whole)
                                          : launch_aligned_or_not(eight, four, whole);
  }
  return aligned && config.vectors == 4 ? launch(warp, four, std::true_type(), whole)
                                        : launch_aligned_or_not(warp, eight, whole);
}

}  // namespace my_ops
