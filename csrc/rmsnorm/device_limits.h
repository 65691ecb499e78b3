// What a launch configuration needs to know of a device. Host only, needs no torch.
#pragma once

namespace my_ops {

struct DeviceLimits {
  int multiprocessors;
  int shared_bytes_per_block;  // with opt-in
  int max_cluster_blocks;      // 1 where the device has no clusters
};

}  // namespace my_ops
