// How the gemv kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "fp4_matmul/ragged_rows.h"

namespace my_ops {

constexpr int kGemvRows = 8;     // of the weight, a unit
constexpr int kGemvDepth = 256;  // of K, a slice of a unit
constexpr int kGemvWarps = 16;
// In shared memory x comes behind barriers, of which two are not of units, and the factors of sums.
constexpr int kGemvBarrierBytes = 256;
constexpr int kGemvFactorsAt = kGemvBarrierBytes - 8;
constexpr int kGemvLiftedAt = kGemvFactorsAt - kGemvWarps * 4;  // of kernels with own slices
constexpr int kGemvMaxUnits = kGemvFactorsAt / 8 - 2;

struct GemvPlan {
  int blocks = 0;  // 0: the kernel is not for this product
  int rows = 0;    // of the weight in a block; the first `more` have one more
  int more = 0;
  int slices = 0;
  // Whether so little of K is left behind the slices that 16 rows of it are one step. Where not, K
  // ends within the last slice.
  bool small_tail = false;
  int pitch = 0;        // bytes between rows of codes in shared memory
  int scale_bytes = 0;  // of all rows there, wherever they begin in 16 bytes
  int64_t shared_bytes = 0;
  // Whether each warp has one slice, of all rows (gemv_slice_kernel.cuh).
  bool own_slices = false;
  int prefetch_ticks = 0;  // where own_slices: from the start of a block to its requests to L2
};

// Rows of codes that begin at multiples of 8 bytes only lie in shared memory as in memory.
constexpr bool gemv_is_flat(int64_t K) { return K % 32 != 0; }

// What a block takes of shared memory, barriers first, the sums of slices last.
constexpr int64_t gemv_shared_bytes(const GemvPlan& plan, int64_t units) {
  const int64_t x = (plan.slices + int64_t{plan.small_tail}) * kGemvDepth * 2;
  const int64_t sums = plan.own_slices ? kGemvWarps * (units * kGemvRows + 4)
                                       : units * kGemvRows * (plan.slices + 2);
  return kGemvBarrierBytes + x + plan.scale_bytes + units * kGemvRows * plan.pitch + 128 + sums * 4;
}

// For one row of x and a ragged weight of which each SM has its part in shared memory at once; with
// own slices also for rows of 4096 where some SM has four units or more: 4.25 us for 4.6 of the
// stream kernel at 3200 x 4096, 5.5 for 5.9 at 5120 x 4096.
inline GemvPlan plan_gemv(int64_t N, int64_t K, int scale_block, int64_t max_shared_bytes,
                          int sms) {
  constexpr int64_t kSmallTail = 128;
  GemvPlan plan;
  const bool ragged = rows_are_ragged(K, scale_block);
  const bool as_many_slices = K / kGemvDepth == kGemvWarps && K % kGemvDepth <= kSmallTail;
  if (N < 4 * sms || K % kRaggedDepth != 0 || K < kGemvWarps * kGemvDepth || K >= 1 << 20 ||
      N >= 1 << 30 || !(ragged || (K == kGemvWarps * kGemvDepth && N > 3 * kGemvRows * sms))) {
    return plan;
  }
  plan.small_tail = K % kGemvDepth <= kSmallTail;
  plan.slices =
      static_cast<int>(plan.small_tail ? K / kGemvDepth : ceil_div(K, int64_t{kGemvDepth}));
  plan.rows = static_cast<int>(N / sms);
  plan.more = static_cast<int>(N % sms);
  const int64_t rows = plan.rows + int64_t{plan.more > 0};
  const int64_t units = ceil_div(rows, int64_t{kGemvRows});
  plan.scale_bytes =
      static_cast<int>(ceil_div(rows * ceil_div(K, int64_t{scale_block}) + 15, int64_t{32}) * 32);
  if (as_many_slices) {
    plan.own_slices = true;
    plan.pitch = static_cast<int>(K / 2);
    // Two blocks fit on an SM, each of which reserves 1 KB: what one may have is all but that.
    const int64_t two = (max_shared_bytes - 1024) / 2;
    if (gemv_shared_bytes(plan, units) <= two) {
      plan.shared_bytes = gemv_shared_bytes(plan, units);
      // 4500 and 6500 ticks for four and five units: 4.45 us at 4096 x 4096, 4.75 with 3500, 4.55
      // with 5500, 5.5 with 0, 5.0 without; 5.75 us at 5003 x 4112, 6.0 with 5000, 6.25 without.
      plan.prefetch_ticks = static_cast<int>(std::max<int64_t>(0, units * 2000 - 3500));
      plan.blocks = sms;
      return plan;
    }
    if (!ragged) return {};
    plan.own_slices = false;
  }
  // Lanes meet all banks where rows follow each other by 64 bytes more than a multiple of 128.
  plan.pitch =
      static_cast<int>(gemv_is_flat(K) ? K / 2 : ceil_div(K / 2 + 64, int64_t{128}) * 128 - 64);
  plan.shared_bytes = gemv_shared_bytes(plan, units);
  if (plan.shared_bytes <= max_shared_bytes && units <= kGemvMaxUnits) plan.blocks = sms;
  return plan;
}

}  // namespace my_ops
