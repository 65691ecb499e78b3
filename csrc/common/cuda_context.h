// Host side of .cu files: the device and the stream that torch has set, and the errors of CUDA.
// Needs no torch; see tensor_view.h.
#pragma once

#include <driver_types.h>

#include <cstdint>

// Raises what C10_CUDA_CHECK raises unless `call` returns cudaSuccess.
#define MY_OPS_CUDA_CHECK(call) my_ops::check_cuda(call, __FILE__, __func__, __LINE__)

namespace my_ops {

cudaStream_t current_stream();  // of the current device
const cudaDeviceProp& current_device_properties();

// Raises unless a grid can have that many blocks.
void check_blocks(const char* op, int64_t blocks);

void check_cuda(cudaError_t error, const char* file, const char* function, int line);

}  // namespace my_ops
