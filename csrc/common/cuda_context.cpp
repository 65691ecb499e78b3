// The functions of cuda_context.h, which ask torch.
#ifdef MY_OPS_WITH_CUDA
#include "common/cuda_context.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

namespace my_ops {

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

const cudaDeviceProp& current_device_properties() {
  return *at::cuda::getCurrentDeviceProperties();
}

void check_blocks(const char* op, int64_t blocks) {
  TORCH_CHECK(blocks <= INT32_MAX, "my_ops.", op, ": the result has too many tiles: ", blocks);
}

void check_cuda(cudaError_t error, const char* file, const char* function, int line) {
  if (error == cudaSuccess) return;
  c10::cuda::c10_cuda_check_implementation(static_cast<int32_t>(error), file, function,
                                           static_cast<uint32_t>(line), true);
}

}  // namespace my_ops
#endif
