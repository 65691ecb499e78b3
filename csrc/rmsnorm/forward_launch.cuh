// Launches a forward as forward_config.cuh says. Host side of .cu files, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/launch.cuh"
#include "rmsnorm/forward_config.cuh"
#include "rmsnorm/forward_kernel.cuh"
#include "rmsnorm/forward_staged_kernel.cuh"
#include "rmsnorm/forward_tiles_kernel.cuh"

namespace my_ops {

template <typename x_t, typename w_t>
cudaError_t launch_forward_kernel(void (*kernel)(ForwardArgs<x_t, w_t>),
                                  const ForwardArgs<x_t, w_t>& args, const ForwardConfig& config,
                                  int shared_bytes, cudaStream_t stream) {
  const int64_t rows_per_block =
      config.lanes > 0 ? config.threads / config.lanes * args.rows_in_turn : 1;
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
  if constexpr (kAccess == Access::elements) {
    if (config.lanes == 16) return rmsnorm_forward_kernel<x_t, w_t, 16, 8, kAccess>;
    if (config.lanes == 0) return rmsnorm_forward_kernel<x_t, w_t, 0, 24, kAccess>;
    return config.vectors == 8 ? rmsnorm_forward_kernel<x_t, w_t, 32, 8, kAccess>
                               : rmsnorm_forward_kernel<x_t, w_t, 32, 32, kAccess>;
  } else {
    constexpr int kFewest = kAccess == Access::packs ? 1 : 4;
    if (config.lanes == 32) return rmsnorm_forward_kernel<x_t, w_t, 32, 4, kAccess>;
    if (config.lanes == 8) {
      return config.vectors == 1 ? rmsnorm_forward_kernel<x_t, w_t, 8, kFewest, kAccess>
                                 : rmsnorm_forward_kernel<x_t, w_t, 8, 4, kAccess>;
    }
    return config.vectors == 4 ? rmsnorm_forward_kernel<x_t, w_t, 0, 4, kAccess>
                               : rmsnorm_forward_kernel<x_t, w_t, 0, 8, kAccess>;
  }
}

// The staged kernel, which loads 8 chunks ahead or 4. Of the copy rate, with 8 and with 4:
//
//   97 and 87 %      float32, 65536 columns: always 8
//   96 and 94 %      packs of 16 bits, something added, 262144 columns: 8
//   96.4 and 95.9 %  nothing added, threads with 8 chunks, bfloat16 (float16 98.6 and 97.1): 8
//   94 and 98 %      nothing added, fewer chunks, 40960 columns: 4, as more blocks share an SM
//
// Shifted packs of 16 bits, and those with a float32 weight, have 4, as with 8 registers spill.
template <typename x_t, typename w_t, Access kAccess>
auto forward_staged_kernel(bool adds, int thread_chunks) {
  constexpr int kAhead = sizeof(x_t) == 2 ? 4 : 8;
  constexpr int kMore = kAccess == Access::packs && sizeof(w_t) == 2 ? 8 : kAhead;
  if (adds) return rmsnorm_forward_staged_kernel<x_t, w_t, kAccess, true, kMore>;
  return thread_chunks >= kMore ? rmsnorm_forward_staged_kernel<x_t, w_t, kAccess, false, kMore>
                                : rmsnorm_forward_staged_kernel<x_t, w_t, kAccess, false, kAhead>;
}

// How many doubles of global memory a forward needs.
template <typename x_t>
int64_t forward_sums(int64_t rows, int64_t H, const ForwardConfig& config) {
  if (config.kind == ForwardKind::two_launches) return rows * config.slices;
  if (config.kind != ForwardKind::tiles) return 0;
  const int64_t parts = (row_packs<x_t>(H) + kTilePartChunks - 1) / kTilePartChunks;
  return TileSums::doubles(rows, parts);
}

// All blocks must run at the same time, as they wait for each other.
template <Access kAccess, bool kAdd, typename x_t, typename w_t>
cudaError_t launch_forward_tiles(ForwardArgs<x_t, w_t> args, const ForwardConfig& config,
                                 cudaStream_t stream) {
  using Shape = TileShape<kAccess, kAdd>;
  const auto kernel = rmsnorm_forward_tiles_kernel<x_t, w_t, kAccess, kAdd>;
  const int64_t chunks = args.H / kChunkElements<x_t>;
  args.slices = static_cast<int>((chunks + Shape::kChunks - 1) / Shape::kChunks);
  cudaError_t error =
      cudaMemsetAsync(args.partial_sums, 0xFF,
                      forward_sums<x_t>(args.rows, args.H, config) * sizeof(double), stream);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim =
      dim3(static_cast<unsigned>(std::min<int64_t>(config.blocks, args.rows * args.slices)));
  launch.blockDim = dim3(Shape::kThreads);
  launch.dynamicSmemBytes = Shape::kSharedBytes;
  launch.stream = stream;
  launch.attrs = &cooperative;
  launch.numAttrs = 1;
  return cudaLaunchKernelEx(&launch, kernel, args);
}

template <Access kAccess, typename x_t, typename w_t>
cudaError_t launch_forward_access(ForwardArgs<x_t, w_t> args, const ForwardConfig& config,
                                  cudaStream_t stream) {
  constexpr int N = kAccessElements<kAccess, x_t>;
  const int64_t chunks = args.H / N;
  args.inverse_H = 1.0 / static_cast<double>(args.H);
  if constexpr (kAccess != Access::elements) {
    if (config.kind == ForwardKind::tiles) {
      return args.residual == nullptr ? launch_forward_tiles<kAccess, false>(args, config, stream)
                                      : launch_forward_tiles<kAccess, true>(args, config, stream);
    }
  }
  args.slices = config.slices;
  args.slice_chunks = static_cast<int>((chunks + config.slices - 1) / config.slices);
  args.phase = Phase::whole;
  args.rows_in_turn = rows_in_turn<x_t>(config, args.rows);
  args.few_blocks = args.rows * config.slices <= kFewBlocks;
  if constexpr (kAccess != Access::elements) {
    if (config.kind == ForwardKind::staged) {
      // Slices are whole lines of memory: 92 % of the copy rate at 100000 columns of float32, where
      // others reach 82.
      constexpr int kLineChunks = 128 / kChunkBytes;
      args.slice_chunks = (args.slice_chunks + kLineChunks - 1) / kLineChunks * kLineChunks;
      const auto kernel = forward_staged_kernel<x_t, w_t, kAccess>(
          args.residual != nullptr, args.slice_chunks / config.threads);
      return launch_forward_kernel(kernel, args, config, staged_slice_bytes(args.slice_chunks),
                                   stream);
    }
  }
  const auto kernel = forward_register_kernel<x_t, w_t, kAccess>(config);
  if (config.kind == ForwardKind::registers) {
    return launch_forward_kernel(kernel, args, config, 0, stream);
  }
  args.phase = Phase::sums;
  const cudaError_t error = launch_forward_kernel(kernel, args, config, 0, stream);
  if (error != cudaSuccess) return error;
  args.phase = Phase::apply;
  return launch_forward_kernel(kernel, args, config, 0, stream);
}

// Launches with the configuration of the width. `aligned`: all rows begin at 16 bytes.
// `args.partial_sums` must hold forward_sums() doubles.
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
