// How a kernel is launched that starts while the one before it in the stream still runs. Host side
// of .cu files, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include "common/overlap.cuh"

namespace my_ops {

// On compute capability 9.0 and later.
inline cudaLaunchAttribute overlapping_launch() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

}  // namespace my_ops
