// Checks the plans of fp4_linear (csrc/fp4_matmul) over many shapes: panels, stretches, gemv and
// the fused kernel. Built and run by tests/test_matmul_plan.py.
#include <random>

#include "fp4_kernel_of.h"
#include "plan_check.h"

namespace {

struct Product {
  int sms, scale_block;
  int64_t M, N, K;
};

// Of few rows of x, the i-th of a check; K is a multiple of `depth`.
Product random_product(std::mt19937_64& random, int i, int64_t depth) {
  const int64_t M = 1 + random() % 20;
  const int64_t N = 1 + random() % (int64_t{1} << (4 + random() % 16));
  const int64_t K = depth * (1 + random() % (int64_t{1} << (random() % 26)));
  return {i % 2 ? kH200Sms : 78, i % 4 < 2 ? 16 : 32, M, N, K};
}

void check_panels() {
  std::mt19937_64 random(0);
  int chosen[8][3] = {};
  for (int i = 0; i < 2000000; ++i) {
    const auto [sms, scale_block, M, N, K] = random_product(random, i, 64);
    const my_ops::PanelPlan plan = my_ops::plan_panel(M, N, K, scale_block, sms);
    if (plan.tiles == 0) continue;
    ++chosen[plan.tiles][plan.groups];
    const int64_t rows = int64_t{plan.tiles} * my_ops::kStreamRows;
    expect(M <= 8 * plan.groups, "groups cover the rows of x", M, N, K, sms);
    expect(plan.panels * rows >= N && (plan.panels - 1) * rows < N, "panels cover the weight", M, N,
           K, sms);
    expect(rows * K / 2 < int64_t{1} << 32, "bytes of a panel in 32 bits", M, N, K, sms);
  }
  expect(chosen[2][1] && chosen[2][2] && chosen[4][2] && chosen[7][2], "each plan", 0, 0, 0, 0);
}

void check_box_panels() {
  std::mt19937_64 random(3);
  int chosen[8][5] = {};
  for (int i = 0; i < 2000000; ++i) {
    auto [sms, scale_block, M, N, K] = random_product(random, i, 64);
    M += random() % 2 * 16;
    const my_ops::PanelPlan plan = my_ops::plan_box_panel(M, N, K, scale_block, sms);
    if (plan.tiles == 0) continue;
    ++chosen[plan.tiles][plan.groups];
    const int64_t rows = int64_t{plan.tiles} * my_ops::kStreamRows;
    expect(M <= 8 * plan.groups, "groups cover the rows of x", M, N, K, sms);
    expect(plan.panels * rows >= N && (plan.panels - 1) * rows < N && rows <= N,
           "panels cover the weight", M, N, K, sms);
    expect(K % my_ops::kStreamDepth == 0 && K / scale_block % 16 == 0, "whole boxes", M, N, K, sms);
    // What takes the product where the copy engine cannot be told how its operands lie.
    expect(my_ops::plan_panel(M, N, K, scale_block, sms).tiles > 0 ||
               my_ops::plan_stream(M, N, K, scale_block, kH200SharedBytes, sms).warps > 0 ||
               my_ops::plan_fused(M, N, K, false, sms).tokens > 0,
           "another kernel could as well", M, N, K, sms);
  }
  int kernels = 0;
  for (const auto& of_tiles : chosen) {
    for (const int times : of_tiles) kernels += times > 0;
  }
  expect(chosen[2][1] && chosen[4][1] && chosen[2][2] && chosen[4][2] && chosen[7][2] &&
             chosen[4][3] && chosen[2][4],
         "each plan of boxes", 0, 0, 0, 0);
  expect(kernels == 7, "no plan without its kernel", 0, 0, 0, 0);
}

void check_ragged_panels() {
  std::mt19937_64 random(1);
  int chosen[4][3] = {};
  for (int i = 0; i < 2000000; ++i) {
    const auto [sms, scale_block, M, N, K] = random_product(random, i, 16);
    const my_ops::PanelPlan plan =
        my_ops::plan_ragged_panel(M, N, K, scale_block, kH200SharedBytes, sms);
    if (plan.tiles == 0) continue;
    ++chosen[plan.tiles][plan.groups];
    const int64_t rows = int64_t{plan.tiles} * my_ops::kStreamRows;
    expect(my_ops::rows_are_ragged(K, scale_block), "ragged rows only", M, N, K, sms);
    expect(M <= 8 * plan.groups, "groups cover the rows of x", M, N, K, sms);
    expect(plan.panels * rows >= N && (plan.panels - 1) * rows < N && rows <= N,
           "panels cover the weight", M, N, K, sms);
    expect(plan.panels <= sms, "all panels at once", M, N, K, sms);
    expect(plan.warps >= 1 && plan.warps <= my_ops::kRaggedPanelWarps, "warps", M, N, K, sms);
    expect(my_ops::ragged_panel_bytes(plan.tiles, plan.groups, plan.warps, K, scale_block) <=
               kH200SharedBytes,
           "a panel fits in shared memory", M, N, K, sms);
  }
  for (const int groups : {1, 2}) {
    expect(chosen[2][groups] && chosen[3][groups], "each plan of ragged rows", 0, 0, 0, 0);
  }
}

void check_stretches() {
  std::mt19937_64 random(1);
  int chosen[3] = {}, in_turn[3] = {}, in_x[2] = {};
  for (int i = 0; i < 2000000; ++i) {
    using namespace my_ops;
    const int sms = i % 2 ? kH200Sms : 78, scale_block = i % 4 < 2 ? 16 : 32;
    const int64_t M = 1 + random() % 20;
    const int64_t N = 1 + random() % (int64_t{1} << (4 + random() % 20));
    const int64_t K = 16 * (1 + random() % (int64_t{1} << (random() % 12)));
    const StretchPlan plan = plan_stretch(M, N, K, scale_block, kH200SharedBytes, sms);
    if (plan.blocks == 0) continue;
    ++chosen[plan.groups];
    expect(rows_are_ragged(K, scale_block), "ragged rows only", M, N, K, sms);
    expect(M <= 8 * plan.groups, "groups cover the rows of x", M, N, K, sms);
    expect(plan.blocks <= sms && plan.blocks <= plan.tiles, "a tile for each block", M, N, K, sms);
    expect(plan.tiles * int64_t{kStretchTileRows} >= N, "tiles cover the weight", M, N, K, sms);
    expect(plan.warps >= 1 && plan.warps <= kStretchWarps, "warps", M, N, K, sms);
    const int64_t depth = int64_t{kStretchPart} * plan.warps;
    expect(depth <= K, "each warp has its part of K", M, N, K, sms);
    const int64_t rest = ceil_div(K - depth, int64_t{kStretchStep});
    expect(rest <= plan.warps && rest <= kStretchMostRest, "a step of the rest for a warp at most",
           M, N, K, sms);
    const int most = ceil_div(plan.tiles, plan.blocks);
    in_turn[plan.groups] += most > plan.slots;
    ++in_x[plan.sums_take_x];
    expect(plan.slots >= 1 && plan.slots <= kStretchSlots && plan.slots <= most, "slots", M, N, K,
           sms);
    const int64_t slots_end = plan.slots_at + int64_t{plan.slots} * plan.slot_bytes;
    const int64_t sums = int64_t{most} * kStretchTileRows * plan.groups * 8 * 4;
    expect(plan.sums == sums, "sums of all tiles", M, N, K, sms);
    expect(!plan.sums_take_x || (M > 8 && plan.sums <= depth), "sums of two warps in a row of x", M,
           N, K, sms);
    expect(slots_end + (plan.sums_take_x ? 0 : plan.warps * sums) <= plan.bytes &&
               plan.bytes <= kH200SharedBytes,
           "shared memory", M, N, K, sms);
    const int64_t offset = kStretchLine - 16;  // of x, and of a tile of codes, in their lines
    expect(kStretchHead + offset + M * K * 2 <= plan.slots_at, "room for x", M, N, K, sms);
    expect(offset + 8 + kStretchTileRows * K / 2 + 8 <= plan.slot_codes, "room for codes", M, N, K,
           sms);
    const int64_t row_scales = ceil_div(K, int64_t{scale_block});
    expect(
        kStretchLine - 1 + kStretchTileRows * row_scales + 8 <= plan.slot_bytes - plan.slot_codes,
        "room for scales", M, N, K, sms);
  }
  for (const int groups : {1, 2}) {
    expect(chosen[groups] > in_turn[groups], "all slots at once", groups, 0, 0, 0);
    expect(in_turn[groups] > 0, "slots in turn", groups, 0, 0, 0);
  }
  expect(in_x[0] && in_x[1], "sums in x and behind it", 0, 0, 0, 0);
}

void check_fused() {
  std::mt19937_64 random(2);
  int chosen[257][4] = {}, in_parts[257][3][4] = {};  // tokens, blocks of a cluster, parts
  int in_boxes[129][4] = {};                          // of tiles of so many rows of x
  for (int i = 0; i < 300000; ++i) {
    const int sms = i % 4 == 0 ? 1 + static_cast<int>(random() % 160) : kH200Sms;
    const int64_t M = 1 + random() % (int64_t{1} << (random() % 16));
    const int64_t N = 16 + random() % (int64_t{1} << (4 + random() % 14));
    const int64_t K = my_ops::kRaggedDepth * (1 + random() % (int64_t{1} << (random() % 14)));
    const bool ragged = i % 3 == 0;
    const my_ops::FusedPlan plan = my_ops::plan_fused(M, N, K, ragged, sms);
    expect((plan.tokens > 0) == (N * K >= 1 << 20), "from 2^20 elements on", M, N, K, sms);
    if (plan.tokens == 0) continue;
    ++chosen[plan.tokens][plan.splits * plan.sharers];
    if (plan.parts > 1) ++in_parts[plan.tokens][plan.splits][plan.parts];
    const int cluster = plan.splits * plan.sharers;
    const int64_t row_tiles = (N + my_ops::kFusedRows - 1) / my_ops::kFusedRows;
    const int64_t tiles =
        (row_tiles + plan.sharers - 1) / plan.sharers * ((M + plan.tokens - 1) / plan.tokens);
    expect(plan.splits == 1 || plan.sharers == 1, "a cluster for one purpose", M, N, K, sms);
    expect(plan.blocks > 0 && plan.blocks % cluster == 0, "whole clusters", M, N, K, sms);
    expect(plan.blocks / cluster <= tiles * plan.parts, "work for each cluster", M, N, K, sms);
    expect(plan.splits * plan.parts == 1 || plan.blocks / cluster == tiles * plan.parts,
           "split tiles once", M, N, K, sms);
    expect(plan.later_tiles == (plan.blocks / cluster < tiles * plan.parts), "tiles one by one", M,
           N, K, sms);
    expect(plan.parts == 1 || plan.blocks <= sms, "all parts at once", M, N, K, sms);
    expect(plan.parts == 1 || plan.tokens == 128 || plan.tokens == 64, "a kernel that sends parts",
           M, N, K, sms);
    expect(plan.parts == 1 ||
               (K + my_ops::kFusedDepth - 1) / my_ops::kFusedDepth >= 4 * plan.parts * plan.splits,
           "four steps of each part", M, N, K, sms);
    expect(plan.tail > 0 && plan.tail <= tiles, "a tail of the tiles", M, N, K, sms);
    expect(!plan.takes_map || !ragged, "the copy engine reads no ragged x", M, N, K, sms);

    // Near it, so that there are many that can.
    const int64_t near_N = (N + 7) / 8 * 8, near_K = (K + 127) / 128 * 128;
    const my_ops::FusedPlan near = my_ops::plan_fused(M, near_N, near_K, false, sms);
    const int scale_block = i % 2 ? 16 : 32;
    if (!my_ops::fused_takes_boxes(near, near_N, near_K, scale_block)) continue;
    ++in_boxes[near.tokens][near.splits];
    expect(near.tokens >= 32 && near.tokens <= 128 && near.sharers == 1 && near.parts == 1,
           "a kernel that takes boxes", M, near_N, near_K, sms);
    expect(near_K / my_ops::kFusedDepth >= near.splits * my_ops::fused_depth_groups(near.tokens),
           "a first step of each group", M, near_N, near_K, sms);
    expect(near_K / scale_block % 16 == 0 && near_K % my_ops::kFusedDepth == 0 && near_N % 16 == 0,
           "whole boxes", M, near_N, near_K, sms);
  }
  for (const int tokens : {32, 64, 128}) {
    expect(chosen[tokens][1] && chosen[tokens][2] && chosen[tokens][3], "each split", tokens, 0, 0,
           0);
  }
  expect(chosen[16][1] && chosen[192][2] && chosen[256][2], "each tile", 0, 0, 0, 0);
  for (const int tokens : {32, 64, 128}) {
    const auto& of_splits = in_boxes[tokens];
    expect(of_splits[1] && of_splits[2] && of_splits[3], "boxes of each split", tokens, 0, 0, 0);
  }
  for (const int tokens : {64, 128}) {
    expect(in_parts[tokens][1][3] && in_parts[tokens][2][2] && in_parts[tokens][2][3],
           "each number of parts", tokens, 0, 0, 0);
  }
}

void check_gemv() {
  std::mt19937_64 random(2);
  int chosen[2][2] = {}, own[2] = {};
  for (int i = 0; i < 2000000; ++i) {
    const int sms = i % 2 ? kH200Sms : 78, scale_block = i % 4 < 2 ? 16 : 32;
    const int64_t N = 1 + random() % (int64_t{1} << (4 + random() % 16));
    const int64_t any = 16 * (1 + random() % (int64_t{1} << (random() % 20)));
    const int64_t K = i % 8 < 4 ? any : 4096 + 16 * (random() % 12);
    const my_ops::GemvPlan plan = my_ops::plan_gemv(N, K, scale_block, kH200SharedBytes, sms);
    if (plan.blocks == 0) continue;
    const bool flat = my_ops::gemv_is_flat(K);
    const bool ragged = my_ops::rows_are_ragged(K, scale_block);
    ++(plan.own_slices ? own[ragged] : chosen[flat][plan.small_tail]);
    expect(ragged || (K == 4096 && plan.own_slices), "ragged rows or one slice a warp", 1, N, K,
           sms);
    expect(int64_t{plan.rows} * plan.blocks + plan.more == N && plan.more < plan.blocks,
           "blocks cover the weight", 1, N, K, sms);
    const int64_t slices = int64_t{plan.slices} * my_ops::kGemvDepth;
    expect(plan.small_tail ? K - slices >= (ragged ? 1 : 0) && K - slices <= 128
                           : slices > K && slices - my_ops::kGemvDepth < K,
           "slices cover K", 1, N, K, sms);
    expect(plan.slices >= my_ops::kGemvWarps, "a slice for each warp", 1, N, K, sms);
    const int64_t row_scales = (K + scale_block - 1) / scale_block;
    expect(flat || plan.own_slices ? plan.pitch == K / 2
                                   : plan.pitch >= K / 2 && plan.pitch % 128 == 64,
           "rows of codes have their place", 1, N, K, sms);
    const int64_t rows = plan.rows + (plan.more > 0 ? 1 : 0);
    expect(plan.scale_bytes >= rows * row_scales + 15 && plan.scale_bytes % 16 == 0,
           "scales have their place wherever they begin", 1, N, K, sms);
    expect((rows + my_ops::kGemvRows - 1) / my_ops::kGemvRows <= my_ops::kGemvMaxUnits,
           "barriers have their place", 1, N, K, sms);
    expect(plan.shared_bytes <= kH200SharedBytes, "a block fits in shared memory", 1, N, K, sms);
    if (!plan.own_slices) continue;
    expect(plan.slices == my_ops::kGemvWarps && plan.small_tail, "one slice a warp", 1, N, K, sms);
    expect(2 * (plan.shared_bytes + 1024) <= kH200SharedBytes + 1024, "two blocks on an SM", 1, N,
           K, sms);
    const int64_t units = (rows + my_ops::kGemvRows - 1) / my_ops::kGemvRows;
    expect((units + 2) * 8 <= my_ops::kGemvLiftedAt, "barriers end before what follows", 1, N, K,
           sms);
    expect(plan.scale_bytes % 32 == 0, "codes begin at multiples of 32 bytes", 1, N, K, sms);
    const int64_t before = my_ops::kGemvBarrierBytes + K * 2 + plan.scale_bytes;
    const int64_t sums = my_ops::kGemvWarps * (units * my_ops::kGemvRows + 4) * 4;
    expect(before + units * my_ops::kGemvRows * K / 2 + sums <= plan.shared_bytes, "all parts fit",
           1, N, K, sms);
  }
  for (const auto& of_tails : chosen) {
    expect(of_tails[0] && of_tails[1], "each plan of one row of x", 1, 0, 0, 0);
  }
  expect(own[0] && own[1], "each plan of a slice for each warp", 1, 0, 0, 0);
}

}  // namespace

int main() {
  check_panels();
  check_box_panels();
  check_ragged_panels();
  check_stretches();
  check_gemv();
  check_fused();
  return wrong > 0;
}
