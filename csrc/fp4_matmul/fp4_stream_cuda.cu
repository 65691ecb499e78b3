// fp4_linear for few rows of x: launches the stream kernel or one of those that take panels.
#include "common/launch.cuh"
#include "common/sm90_tensor_map.h"
#include "fp4_matmul/box_panel_kernel.cuh"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_stream.h"
#include "fp4_matmul/panel_kernel.cuh"
#include "fp4_matmul/ragged_kernel.cuh"
#include "fp4_matmul/stream_kernel.cuh"
#include "fp4_matmul/stretch_kernel.cuh"

namespace my_ops {
namespace {

template <typename scalar_t, Fp4Format kFormat, bool kRagged, bool kColumns>
void launch_tile(const StreamArguments& args, const StreamPlan& plan, bool overlapping) {
  const auto with = [&](auto kernel) {
    launch_with({1, overlapping}, kernel, plan.blocks, plan.warps * 32,
                plan.warps * plan.memory.bytes, args);
  };
  plan.steps == 1
      ? with(fp4_stream_kernel<StreamTile<scalar_t, kFormat, 1, kRagged, kColumns>>)
      : with(fp4_stream_kernel<StreamTile<scalar_t, kFormat, kStreamSteps, kRagged, kColumns>>);
}

template <typename scalar_t, Fp4Format kFormat>
void launch_stream(const StreamArguments& args, const StreamPlan& plan, bool overlapping) {
  if (rows_are_ragged(args.out.K, fp4_block_size(kFormat))) {
    launch_tile<scalar_t, kFormat, true, false>(args, plan, overlapping);
  } else if (args.out.M <= kStreamColumns) {
    launch_tile<scalar_t, kFormat, false, true>(args, plan, overlapping);
  } else {
    launch_tile<scalar_t, kFormat, false, false>(args, plan, overlapping);
  }
}

template <typename scalar_t, Fp4Format kFormat, int kTiles, int kGroups>
void launch_panel_tile(const StreamArguments& args, const PanelPlan& plan) {
  using Tile = PanelTile<scalar_t, kFormat, kTiles, kGroups>;
  launch_with({1, true}, fp4_panel_kernel<Tile>, plan.panels, Tile::kThreads, Tile::kSharedBytes,
              args);
}

template <typename scalar_t, Fp4Format kFormat>
void launch_panel(const StreamArguments& args, const PanelPlan& plan) {
  if (plan.groups == 1) return launch_panel_tile<scalar_t, kFormat, 2, 1>(args, plan);
  if (plan.tiles == 2) return launch_panel_tile<scalar_t, kFormat, 2, 2>(args, plan);
  if (plan.tiles == 4) return launch_panel_tile<scalar_t, kFormat, 4, 2>(args, plan);
  launch_panel_tile<scalar_t, kFormat, 7, 2>(args, plan);
}

// False where the copy engine cannot be told how the operands lie. Boxes of x have its rows and no
// more: with 16 for M = 9 6.3 us at 4096 x 4096, for 5.6 with M = 16.
template <typename scalar_t, Fp4Format kFormat, int kTiles, int kGroups>
bool launch_box_tile(const StreamArguments& stream, const PanelPlan& plan) {
  using Tile = BoxPanelTile<scalar_t, kFormat, kTiles, kGroups>;
  const int64_t M = stream.out.M, N = stream.out.N, K = stream.out.K;
  BoxPanelArguments args{stream, {}, {}, {}};
  if (!encode_byte_map(args.codes, stream.codes, N, K / 2, Tile::kRows, 128) ||
      !encode_byte_map(args.scales, stream.scales, N, K / Tile::kScaleBlock, Tile::kRows,
                       Tile::kScaleRowBytes) ||
      !encode_parts_map(args.x, stream.x, M, K, M == 1 ? K : stream.x_stride, static_cast<int>(M),
                        Tile::kXParts)) {
    return false;
  }
  launch_with({1, true}, fp4_box_panel_kernel<Tile>, plan.panels, Tile::kThreads,
              Tile::kSharedBytes, args);
  return true;
}

template <typename scalar_t, Fp4Format kFormat>
bool launch_box(const StreamArguments& args, const PanelPlan& plan) {
  if (plan.groups == 1) {
    return plan.tiles == 2 ? launch_box_tile<scalar_t, kFormat, 2, 1>(args, plan)
                           : launch_box_tile<scalar_t, kFormat, 4, 1>(args, plan);
  }
  if (plan.groups == 3) return launch_box_tile<scalar_t, kFormat, 4, 3>(args, plan);
  if (plan.groups == 4) return launch_box_tile<scalar_t, kFormat, 2, 4>(args, plan);
  if (plan.tiles == 2) return launch_box_tile<scalar_t, kFormat, 2, 2>(args, plan);
  if (plan.tiles == 4) return launch_box_tile<scalar_t, kFormat, 4, 2>(args, plan);
  return launch_box_tile<scalar_t, kFormat, 7, 2>(args, plan);
}

template <typename scalar_t, Fp4Format kFormat, int kTiles, int kGroups>
void launch_ragged_tile(const StreamArguments& args, const PanelPlan& plan) {
  using Tile = RaggedPanelTile<scalar_t, kFormat, kTiles, kGroups>;
  const int64_t bytes =
      ragged_panel_bytes(kTiles, kGroups, plan.warps, args.out.K, fp4_block_size(kFormat));
  launch_with({1, true}, fp4_ragged_kernel<Tile>, plan.panels, plan.warps * 32,
              static_cast<size_t>(bytes), args);
}

template <typename scalar_t, Fp4Format kFormat>
void launch_ragged(const StreamArguments& args, const PanelPlan& plan) {
  if (plan.groups == 1) {
    plan.tiles == 2 ? launch_ragged_tile<scalar_t, kFormat, 2, 1>(args, plan)
                    : launch_ragged_tile<scalar_t, kFormat, 3, 1>(args, plan);
  } else {
    plan.tiles == 2 ? launch_ragged_tile<scalar_t, kFormat, 2, 2>(args, plan)
                    : launch_ragged_tile<scalar_t, kFormat, 3, 2>(args, plan);
  }
}

template <typename scalar_t, Fp4Format kFormat>
void launch_stretch(const StretchArguments& args) {
  const StretchPlan& plan = args.plan;
  const auto with = [&](auto kernel) {
    launch_with({1, true}, kernel, plan.blocks, plan.warps * 32, plan.bytes, args);
  };
  plan.groups == 1 ? with(fp4_stretch_kernel<StretchTile<scalar_t, kFormat, 1>>)
                   : with(fp4_stretch_kernel<StretchTile<scalar_t, kFormat, 2>>);
}

}  // namespace

bool fp4_stream(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                const TensorView& y) {
  const auto* const codes = b.packed.const_data_ptr<uint8_t>();
  const auto* const scales = b.scale.const_data_ptr<uint8_t>();
  const int64_t x_stride = x.size(0) == 1 ? 0 : x.stride(0);
  const int scale_block = fp4_block_size(b.format);
  const bool ragged = rows_are_ragged(b.depth(), scale_block);
  const bool whole_words = starts_at_multiple_of(scales, 0, 4);
  if (!b.contracts_cols || x.scalar_type() == ScalarType::Float || x.stride(1) != 1 ||
      !starts_at_multiple_of(x.const_data_ptr(), x_stride * 2, 16) ||
      !starts_at_multiple_of(codes, 0, ragged ? 8 : 16) || !(ragged || whole_words)) {
    return false;
  }
  const cudaDeviceProp& device = current_device_properties();
  const int sms = device.multiProcessorCount;
  using AnyPanel = PanelTile<__half, Fp4Format::nvfp4, 7, 2>;
  const bool panels = runs_wgmma(fp4_panel_kernel<AnyPanel>, AnyPanel::kThreads);
  const int64_t M = x.size(0), N = y.size(1), K = b.depth();
  const auto shared_bytes = static_cast<int64_t>(device.sharedMemPerBlockOptin);
  PanelPlan box, panel;
  StretchPlan stretch;
  if (panels && (M == 1 || x_stride >= K) && starts_at_multiple_of(scales, 0, 16)) {
    box = plan_box_panel(M, N, K, scale_block, sms);
  }
  if (panels) {
    stretch = plan_stretch(M, N, K, scale_block, shared_bytes, sms);
    panel = ragged ? plan_ragged_panel(M, N, K, scale_block, shared_bytes, sms)
                   : plan_panel(M, N, K, scale_block, sms);
  }
  StreamPlan plan;
  if (panel.tiles == 0 && stretch.blocks == 0 && whole_words) {
    plan = plan_stream(M, N, K, scale_block, shared_bytes, sms);
  }
  const bool others = panel.tiles > 0 || stretch.blocks > 0 || plan.warps > 0;
  if (box.tiles == 0 && !others) return false;
  const int row_bytes = plan.steps * kStreamDepth / scale_block;
  const StreamArguments args{
      codes,
      scales,
      starts_at_multiple_of(scales, K / scale_block, std::min(row_bytes, 16)),
      b.amax.const_data_ptr<float>(),
      x.const_data_ptr(),
      x_stride,
      product_output(y, K, bias),
      plan.passes,
      plan.memory};
  using AnyTile = StreamTile<__half, Fp4Format::nvfp4, 1, false, false>;
  const bool overlapping = runs_clusters(fp4_stream_kernel<AnyTile>);
  const auto launch_for = [&](auto element, auto format) {
    using scalar_t = decltype(element);
    if (box.tiles > 0 && launch_box<scalar_t, decltype(format)::value>(args, box)) return true;
    if (stretch.blocks > 0) {
      launch_stretch<scalar_t, decltype(format)::value>({args, stretch});
    } else if (panel.tiles > 0 && ragged) {
      launch_ragged<scalar_t, decltype(format)::value>(args, panel);
    } else if (panel.tiles > 0) {
      launch_panel<scalar_t, decltype(format)::value>(args, panel);
    } else if (others) {
      launch_stream<scalar_t, decltype(format)::value>(args, plan, overlapping);
    }
    return others;
  };
  const auto launch_format = [&](auto format) {
    return x.scalar_type() == ScalarType::Half ? launch_for(__half{}, format)
                                               : launch_for(__nv_bfloat16{}, format);
  };
  return b.format == Fp4Format::nvfp4
             ? launch_format(std::integral_constant<Fp4Format, Fp4Format::nvfp4>{})
             : launch_format(std::integral_constant<Fp4Format, Fp4Format::mxfp4>{});
}

}  // namespace my_ops
