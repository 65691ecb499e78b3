// fp4_linear for few rows of x: launches the stream kernel, or one of those that take panels or
// stretches of the weight (plans_for).
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

// Who takes a product, in this order. Boxes may still be refused (launch_box_tile).
struct StreamPlans {
  PanelPlan box;
  StretchPlan stretch;
  PanelPlan panel;  // of ragged_kernel.cuh for ragged rows, else of panel_kernel.cuh
  StreamPlan stream;

  bool any_without_boxes() const {
    return stretch.blocks > 0 || panel.tiles > 0 || stream.warps > 0;
  }
};

StreamPlans plans_for(int64_t M, int64_t N, int64_t K, int scale_block, bool boxes_fit,
                      bool whole_words) {
  const cudaDeviceProp& device = current_device_properties();
  const int sms = device.multiProcessorCount;
  const auto shared_bytes = static_cast<int64_t>(device.sharedMemPerBlockOptin);
  using AnyPanel = PanelTile<__half, Fp4Format::nvfp4, 7, 2>;
  StreamPlans plans;
  if (runs_wgmma(fp4_panel_kernel<AnyPanel>, AnyPanel::kThreads)) {
    if (boxes_fit) plans.box = plan_box_panel(M, N, K, scale_block, sms);
    plans.stretch = plan_stretch(M, N, K, scale_block, shared_bytes, sms);
    plans.panel = rows_are_ragged(K, scale_block)
                      ? plan_ragged_panel(M, N, K, scale_block, shared_bytes, sms)
                      : plan_panel(M, N, K, scale_block, sms);
  }
  if (!plans.any_without_boxes() && whole_words) {
    plans.stream = plan_stream(M, N, K, scale_block, shared_bytes, sms);
  }
  return plans;
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
  const int64_t M = x.size(0), K = b.depth();
  const bool boxes_fit = (M == 1 || x_stride >= K) && starts_at_multiple_of(scales, 0, 16);
  const StreamPlans plans = plans_for(M, y.size(1), K, scale_block, boxes_fit, whole_words);
  const StreamPlan& stream = plans.stream;
  const bool any_without_boxes = plans.any_without_boxes();
  if (plans.box.tiles == 0 && !any_without_boxes) return false;
  const int row_bytes = stream.steps * kStreamDepth / scale_block;
  const StreamArguments args{
      codes,
      scales,
      starts_at_multiple_of(scales, K / scale_block, std::min(row_bytes, 16)),
      b.amax.const_data_ptr<float>(),
      x.const_data_ptr(),
      x_stride,
      product_output(y, K, bias),
      stream.passes,
      stream.memory};
  using AnyTile = StreamTile<__half, Fp4Format::nvfp4, 1, false, false>;
  const bool overlapping = runs_clusters(fp4_stream_kernel<AnyTile>);
  return with_types(x, b.format, [&](auto element, auto format) {
    using scalar_t = decltype(element);
    constexpr Fp4Format kFormat = decltype(format)::value;
    if (plans.box.tiles > 0 && launch_box<scalar_t, kFormat>(args, plans.box)) return true;
    if (plans.stretch.blocks > 0) {
      launch_stretch<scalar_t, kFormat>({args, plans.stretch});
    } else if (plans.panel.tiles > 0 && ragged) {
      launch_ragged<scalar_t, kFormat>(args, plans.panel);
    } else if (plans.panel.tiles > 0) {
      launch_panel<scalar_t, kFormat>(args, plans.panel);
    } else if (stream.warps > 0) {
      launch_stream<scalar_t, kFormat>(args, stream, overlapping);
    }
    return any_without_boxes;
  });
}

}  // namespace my_ops
