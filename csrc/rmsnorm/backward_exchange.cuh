// How the sums of a wide row get from the warps of a cluster to all of them. Device only, compute
// capability 9.0 and later, needs no torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"
#include "rmsnorm/backward_math.cuh"
#include "rmsnorm/mbarrier.cuh"

namespace my_ops {

// What the warps of a block and the blocks of a cluster tell each other about one row.
template <typename acc_t>
struct RowExchange {
  double warp_sums[kMaxBlockWarps][2];
  double block_sums[kMaxClusterBlocks][2];
  RowScale<acc_t> scale;
  MBarrier warps_done;
  MBarrier blocks_done;
  MBarrier scale_done;

  __device__ __forceinline__ void init(int warps) {
    warps_done.init(2 * warps);
    blocks_done.init(1);
    scale_done.init(1);
  }

  // In a computing warp: hands in its part of both sums.
  __device__ __forceinline__ void send(const double (&sums)[2]) {
    const double sum = lanes_sum_halves<kWarpSize>(sums);
    if (threadIdx.x % kMaxBlockWarps == 0) {
      warp_sums[threadIdx.x / kWarpSize][threadIdx.x / kMaxBlockWarps % 2] = sum;
      warps_done.arrive();
    }
  }
};

// The exchanges of successive rows. Three, because a block may send the sums of row r + 2 before
// another block has read those of row r, but not those of row r + 3: for that it needs the scale of
// row r + 1, to which the other block contributes only after it has read row r's.
constexpr int kExchanges = 3;
struct ExchangeTurn {
  int index = 0;
  int parity = 0;

  __device__ __forceinline__ ExchangeTurn next() const {
    return index + 1 < kExchanges ? ExchangeTurn{index + 1, parity} : ExchangeTurn{0, parity ^ 1};
  }
};

// One warp of every block: from the sums of warps to the scale of each row. The lower half of its
// lanes adds up one of the two sums, the upper half the other.
template <typename acc_t, typename Args>
__device__ __forceinline__ void exchange_sums(const Args& args,
                                              RowExchange<acc_t> (&exchanges)[kExchanges],
                                              int64_t first_row, int64_t row_step, int warps) {
  const int lane = threadIdx.x % kWarpSize;
  const int part = lane % kMaxBlockWarps;
  const int which = lane / kMaxBlockWarps;
  const int blocks = args.slices;
  const int rank = blockIdx.x % blocks;
  ExchangeTurn turn;
  for (int64_t row = first_row; row < args.rows; row += row_step) {
    RowExchange<acc_t>& exchange = exchanges[turn.index];
    exchange.warps_done.wait(turn.parity);
    double sum = lanes_sum<kMaxBlockWarps>(part < warps ? exchange.warp_sums[part][which] : 0.0);
    if (blocks > 1) {
      if (lane == 0) {
        exchange.blocks_done.arrive_expecting(blocks * 2 * static_cast<int>(sizeof(double)));
      }
      if (part < blocks) {
        exchange.blocks_done.store_to_block(&exchange.block_sums[rank][which], sum, part);
      }
      exchange.blocks_done.wait(turn.parity);
      sum = lanes_sum<kMaxClusterBlocks>(part < blocks ? exchange.block_sums[part][which] : 0.0);
    }
    double sums[2];
    share_halves<kWarpSize>(sum, sums);
    if (lane == 0) {
      exchange.scale = row_scale<acc_t>(sums[0], sums[1], args.inverse_H, args.eps);
      exchange.scale_done.arrive();
    }
    turn = turn.next();
  }
}

}  // namespace my_ops
