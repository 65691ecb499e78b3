// Which kernel rows get in a backward. Host side of .cu files, needs no torch.
#pragma once

#include "rmsnorm/backward_config.cuh"

namespace my_ops {

// Whether there is a kernel for rows that lie so. Others have to be copied.
inline bool takes(const BackwardConfig& config, Rows lie) {
  return lie != Rows::shifted || (!config.wide && config.whole);
}

template <typename x_t>
struct BackwardKernels {
  using Kernel = void (*)(BackwardArgs<x_t>);

  static Kernel of(const BackwardConfig& config, Rows lie, Phase phase) {
    if (config.lanes > 0 && lie == Rows::ragged) {
      return edges_lanes_kernel<Rows::ragged>(config.lanes);
    }
    if constexpr (!kOnlyRagged<x_t>) {
      if (config.lanes > 0 && lie == Rows::in_step) {
        return edges_lanes_kernel<Rows::in_step>(config.lanes);
      }
      if (config.lanes == 8) return lanes_kernel<8>(config.vectors, lie);
      if (config.lanes == 32) return lanes_kernel<32>(config.vectors, lie);
      if constexpr (sizeof(x_t) > 2) {
        if (config.wide && config.vectors == kWidestVectors) {
          return rmsnorm_backward_widest_kernel<x_t>;
        }
      }
      if (config.wide) return rmsnorm_backward_wide_kernel<x_t>;
    }
    if (phase == Phase::sums) return block_kernel<Phase::sums>(lie);
    if (phase == Phase::apply) return block_kernel<Phase::apply>(lie);
    if constexpr (sizeof(x_t) == 4) {
      if (config.vectors == 5) return edges_block_kernel<5>(lie);
      if (config.vectors == 6) return edges_block_kernel<6>(lie);
    }
    return block_kernel<Phase::whole>(lie);
  }

 private:
  template <int kLanes, int kVectors, Rows kRows>
  static Kernel lanes_kernel() {
    return rmsnorm_backward_kernel<x_t, kLanes, kVectors, kRows, Phase::whole>;
  }
  template <int kLanes>
  static Kernel lanes_kernel(int vectors, Rows lie) {
    if (lie == Rows::shifted) return lanes_kernel<kLanes, 4, Rows::shifted>();
    if (lie == Rows::aligned) {
      return vectors == 2 ? lanes_kernel<kLanes, 2, Rows::aligned>()
                          : lanes_kernel<kLanes, 4, Rows::aligned>();
    }
    return vectors == 2 ? lanes_kernel<kLanes, 2, Rows::even>()
                        : lanes_kernel<kLanes, 4, Rows::even>();
  }
  template <Rows kRows>
  static Kernel edges_lanes_kernel(int lanes) {
    if (lanes == 4) return lanes_kernel<4, 4, kRows>();
    if (lanes == 8) return lanes_kernel<8, 4, kRows>();
    if (lanes == 16) return lanes_kernel<16, 4, kRows>();
    return lanes_kernel<32, 4, kRows>();
  }
  template <int kVectors>
  static Kernel edges_block_kernel(Rows lie) {
    if (lie == Rows::in_step) {
      return rmsnorm_backward_kernel<x_t, 0, kVectors, Rows::in_step, Phase::whole>;
    }
    return rmsnorm_backward_kernel<x_t, 0, kVectors, Rows::ragged, Phase::whole>;
  }
  template <Phase kPhase>
  static Kernel block_kernel(Rows lie) {
    constexpr int kVectors = kBackwardVectors;
    if constexpr (!kOnlyRagged<x_t>) {
      if constexpr (kPhase == Phase::whole) {
        if (lie == Rows::shifted) {
          return rmsnorm_backward_kernel<x_t, 0, kVectors, Rows::shifted, kPhase>;
        }
        if (lie == Rows::in_step) {
          return rmsnorm_backward_kernel<x_t, 0, kVectors, Rows::in_step, kPhase>;
        }
      }
      if (lie == Rows::even || lie == Rows::aligned) {
        return rmsnorm_backward_kernel<x_t, 0, kVectors, Rows::aligned, kPhase>;
      }
    }
    return rmsnorm_backward_kernel<x_t, 0, kVectors, Rows::ragged, kPhase>;
  }
};

}  // namespace my_ops
