// Which kernel of fp4_linear takes a 16-bit x and an aligned weight on an H200, in the order of
// fp4_matmul_dense_cuda and fp4_stream (csrc/fp4_matmul), by their plans alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fp4_matmul/fused_plan.h"
#include "fp4_matmul/gemv_plan.h"
#include "fp4_matmul/panel_plan.h"
#include "fp4_matmul/stretch_plan.h"

constexpr int kH200Sms = 132;
constexpr int kH200SharedBytes = 227 * 1024;  // of a block

struct Taken {
  std::string by;          // the kernel and its template, in words
  std::vector<int> order;  // what decides in which order the sums of a row are added
};

inline Taken kernel_of(int64_t M, int64_t N, int64_t K, int scale_block) {
  using namespace my_ops;
  using std::to_string;
  constexpr int kSms = kH200Sms, kBytes = kH200SharedBytes;
  const bool ragged = rows_are_ragged(K, scale_block);
  const GemvPlan gemv = plan_gemv(N, K, scale_block, kBytes, kSms);
  if (M == 1 && gemv.blocks > 0) {
    const char* const rows = K % kGemvDepth == 0 ? ", aligned" : ", ragged";
    if (gemv.own_slices) return {std::string("gemv slices") + rows, {4}};
    const char* const lie = gemv_is_flat(K) ? ", flat" : ", pitch";
    return {std::string("gemv") + lie + (gemv.small_tail ? ", tail" : ""), {5, gemv.small_tail}};
  }
  const auto panels = [](const PanelPlan& plan) {
    return to_string(plan.tiles) + " tiles, " + to_string(plan.groups) + " groups";
  };
  const PanelPlan box = plan_box_panel(M, N, K, scale_block, kSms);
  if (box.tiles > 0) return {"box panels, " + panels(box), {3, box.groups == 3}};  // fewer warps
  const StretchPlan stretch = plan_stretch(M, N, K, scale_block, kBytes, kSms);
  if (stretch.blocks > 0) {
    return {"stretches, " + to_string(stretch.groups) + " groups", {6, stretch.warps}};
  }
  const PanelPlan panel = ragged ? plan_ragged_panel(M, N, K, scale_block, kBytes, kSms)
                                 : plan_panel(M, N, K, scale_block, kSms);
  if (panel.tiles > 0 && ragged) return {"ragged panels, " + panels(panel), {7, panel.warps}};
  if (panel.tiles > 0) return {"panels, " + panels(panel), {0, panel.tiles, panel.groups}};
  const StreamPlan stream = plan_stream(M, N, K, scale_block, kBytes, kSms);
  if (stream.warps > 0) {
    const bool columns = M <= kStreamColumns && !ragged;
    return {"stream, " + to_string(stream.steps) + " steps" +
                (ragged ? ", ragged" : (columns ? ", columns" : "")),
            {1, stream.warps, stream.steps, columns}};
  }
  const FusedPlan fused = plan_fused(M, N, K, ragged, kSms);
  if (fused.tokens == 0) return {"generic", {8}};
  const bool boxes = !ragged && fused_takes_boxes(fused, N, K, scale_block);
  const int token_tiles = static_cast<int>((M + fused.tokens - 1) / fused.tokens);
  return {"fused " + to_string(fused.tokens) + ", " + to_string(fused.splits) + " splits, " +
              to_string(fused.parts) + " parts" + (boxes ? ", boxes" : "") +
              (ragged ? ", ragged" : "") + (fused.later_tiles ? ", later tiles" : ""),
          {2, fused_depth_groups(fused.tokens), fused.takes_map, fused.splits, fused.parts,
           fused.tail / token_tiles}};
}
