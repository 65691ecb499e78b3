// fp4_matmul on Hopper's tensor cores: brings x into a form that the kernel takes and launches the
// fused kernel.
#include "common/launch.cuh"
#include "common/sm90_tensor_map.h"
#include "fp4_matmul/fp4_fused.h"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_widen.cuh"
#include "fp4_matmul/fused_kernel.cuh"
#include "fp4_matmul/fused_plan.h"
#include "fp4_matmul/x_image.cuh"

namespace my_ops {
namespace {

// Two warpgroups that share a row's steps take turns by themselves, so one set of operands each is
// enough. One that has them alone decodes into a second set: 21.8 us at 64 rows of x, 8192 x 8192,
// against 24.5 with two warpgroups. With 128 rows and operands of four instructions in work 29.6
// us, with those of two 30.5. More slots than these are slower, as the first step of a warp waits
// behind its last: with 64 rows and six 23.1 us, with 32 rows and three 20.4 instead of 19.7. Where
// a block has one tile after the other, its results as boxes are worth a stage of x: 654 us instead
// of 662 with 4096 rows of x, 8192 x 8192.
// Ragged slots are of a block, for both groups of warps where there are two. With 128 rows and two
// of them 20.0 us for 19.2 at 5003 x 4112; with 64 rows and five 14.9 for 14.7.
template <typename scalar_t, Fp4Format kFormat, bool kRagged>
struct FusedTiles {
  template <int kTokens, int kStageDepth, int kStages, int kSlots, int kRaggedSlots, int kWords,
            int kBuffers, bool kMail = false, bool kResultBoxes = false, bool kWeightBoxes = false>
  using Tile =
      FusedTile<scalar_t, kFormat, kTokens, kStageDepth, kStages, kRagged ? kRaggedSlots : kSlots,
                kWords, kBuffers, kRagged, kMail, kResultBoxes, kWeightBoxes>;
  using Tokens16 = Tile<16, 256, 6, 3, 6, 2, 1>;
  using Tokens32 = Tile<32, 256, 4, 2, 5, 2, 1>;
  using Tokens64 = Tile<64, 128, 6, 3, 3, 2, 2>;
  using Tokens128 = Tile<128, 128, 5, 2, 3, 2, 2>;
  using Tokens64Mail = Tile<64, 128, 6, 3, 3, 2, 2, true>;
  using Tokens128Mail = Tile<128, 128, 5, 2, 3, 2, 2, true>;
  using Tokens192 = Tile<192, 64, kRagged ? 6 : 7, 3, 3, 1, 2>;
  using Tokens256 = Tile<256, 64, 5, 3, 3, 1, 2>;

  // Never of ragged rows.
  template <int kTokens, int kStageDepth, int kStages, int kSlots, int kWords, int kBuffers,
            bool kResultBoxes, bool kWeightBoxes>
  using BoxTile = Tile<kTokens, kStageDepth, kStages, kSlots, kSlots, kWords, kBuffers, false,
                       kResultBoxes, kWeightBoxes>;
  using Tokens32WeightBoxes = BoxTile<32, 256, 4, 4, 2, 1, false, true>;
  using Tokens64WeightBoxes = BoxTile<64, 256, 4, 4, 2, 2, false, true>;
  using Tokens128WeightBoxes = BoxTile<128, 128, 5, 3, 2, 2, false, true>;
  using Tokens256ResultBoxes = BoxTile<256, 64, 4, 3, 1, 2, true, false>;
};

FusedPlan plan_for(const Fp4FactorView& b, const TensorView& y) {
  const bool ragged = rows_are_ragged(b.depth(), fp4_block_size(b.format));
  const bool aligned = starts_at_multiple_of(b.packed.const_data_ptr(), 0, ragged ? 8 : 16) &&
                       starts_at_multiple_of(b.scale.const_data_ptr(), 0, ragged ? 1 : 4);
  if (!b.contracts_cols || !aligned) return {};
  const int sms = current_device_properties().multiProcessorCount;
  const FusedPlan plan = plan_fused(y.size(0), y.size(1), b.depth(), ragged, sms);
  using AnyTile = FusedTiles<__half, Fp4Format::nvfp4, false>::Tokens256;
  return runs_wgmma(fp4_fused_kernel<AnyTile>, AnyTile::kThreads) ? plan : FusedPlan{};
}

// Memory for the image of an x with as many rows as y.
OwnedTensor empty_image(const TensorView& y, const Fp4FactorView& b, const FusedPlan& plan,
                        ImageLayout& layout) {
  const int64_t tiles =
      ceil_div(y.size(0), int64_t{plan.tokens}) * ceil_div(y.size(1), int64_t{kFusedRows});
  layout = {
      nullptr,
      y.size(0),
      static_cast<int>(b.depth()),
      static_cast<int>(ceil_div(b.depth(), int64_t{kFusedDepth})) * (kFusedDepth / kImageDepth),
      plan.tokens,
      mail_room(tiles, plan.tokens, plan.parts)};
  auto image = OwnedTensor::empty(layout.bytes() + layout.mail.bytes(), ScalarType::Byte);
  layout.image = image.data_ptr<uint8_t>();
  layout.mail.lies_at(layout.image + layout.bytes());
  return image;
}

bool image_starts_early(const Fp4FactorView& b, const FusedPlan& plan) {
  return fused_ends_early(plan.tokens, rows_are_ragged(b.depth(), fp4_block_size(b.format)));
}

// Launches a kernel that makes an image.
template <typename... Params, typename... Args>
void launch_image(void (*kernel)(const ImageLayout, Params...), FusedArguments& args,
                  const ImageLayout& layout, bool starts_early, Args... more) {
  args.image = layout.image;
  args.mail = layout.mail;
  const dim3 blocks = layout.blocks();
  int64_t shared_bytes = 0;
  if (starts_early) {
    // It starts while such a kernel in front of it ends. So that its blocks do not gather on the
    // few SMs that are idle by then, they ask for shared memory that leaves no room on an SM for
    // more of them than it takes for all at once, or two: 9.9 us instead of 12.1 at 64 rows of x,
    // 4096 x 4096.
    const cudaDeviceProp& device = current_device_properties();
    const int64_t all = int64_t{blocks.x} * blocks.y;
    const auto on_each = std::max<int64_t>(ceil_div(all, int64_t{device.multiProcessorCount}), 2);
    const auto room = static_cast<int64_t>(device.sharedMemPerMultiprocessor);
    shared_bytes = std::max<int64_t>(room / on_each / 1024 - 1, 0) * 1024;
  }
  launch_with({1, true}, kernel, blocks, kImageThreads, shared_bytes, layout, more...);
}

template <typename Tile>
void launch_tile(typename Tile::Arguments args, const FusedPlan& plan) {
  const ProductOutput& out = args.out;
  args.row_clusters = static_cast<int>(ceil_div(out.N, int64_t{kFusedRows} * plan.sharers));
  args.token_tiles = static_cast<int>(ceil_div(out.M, int64_t{Tile::kTokens}));
  args.splits = plan.splits;
  args.sharers = plan.sharers;
  const int parts = plan.splits * plan.parts;
  for (int part = 0; part <= parts; ++part) {
    args.part_begin[part] = static_cast<int>(int64_t{args.steps} * part / parts);
  }
  args.tail = plan.tail;
  args.works = 2 * args.row_clusters * args.token_tiles - plan.tail;
  launch_with({static_cast<unsigned>(plan.splits * plan.sharers), true}, fp4_fused_kernel<Tile>,
              plan.blocks, Tile::kThreads, Tile::kSharedBytes, args);
}

// Has the copy engine store the results. False where it cannot, or where the last warp of a tile
// would repeat rows of the one in front (warp_row).
bool map_results(FusedArguments& args) {
  const ProductOutput& out = args.out;
  return args.vectors && out.N % 16 == 0 &&
         encode_tensor_map(args.y_map, out.data, out.M, out.N, out.row_stride, kOutputBox);
}

template <typename Tiles>
void launch_tokens(RaggedArguments args, const FusedPlan& plan) {
  if (plan.parts > 1) {
    if (plan.tokens == 64) return launch_tile<typename Tiles::Tokens64Mail>(args, plan);
    return launch_tile<typename Tiles::Tokens128Mail>(args, plan);
  }
  if constexpr (!Tiles::Tokens64::kRagged) {
    if (plan.takes_boxes) {
      if (plan.tokens == 32) return launch_tile<typename Tiles::Tokens32WeightBoxes>(args, plan);
      if (plan.tokens == 64) return launch_tile<typename Tiles::Tokens64WeightBoxes>(args, plan);
      return launch_tile<typename Tiles::Tokens128WeightBoxes>(args, plan);
    }
  }
  if (plan.tokens == 16) return launch_tile<typename Tiles::Tokens16>(args, plan);
  if (plan.tokens == 32) return launch_tile<typename Tiles::Tokens32>(args, plan);
  if (plan.tokens == 64) return launch_tile<typename Tiles::Tokens64>(args, plan);
  if (plan.tokens == 128) return launch_tile<typename Tiles::Tokens128>(args, plan);
  if (plan.tokens == 192) return launch_tile<typename Tiles::Tokens192>(args, plan);
  if constexpr (!Tiles::Tokens256::kRagged) {
    if (plan.later_tiles && map_results(args)) {
      return launch_tile<typename Tiles::Tokens256ResultBoxes>(args, plan);
    }
  }
  launch_tile<typename Tiles::Tokens256>(args, plan);
}

template <typename scalar_t, Fp4Format kFormat>
void launch_fused(const RaggedArguments& args, const FusedPlan& plan) {
  rows_are_ragged(args.out.K, fp4_block_size(kFormat))
      ? launch_tokens<FusedTiles<scalar_t, kFormat, true>>(args, plan)
      : launch_tokens<FusedTiles<scalar_t, kFormat, false>>(args, plan);
}

// Has the copy engine read ragged rows of codes, the even and the odd ones (fused_slots.cuh).
bool map_codes(RaggedArguments& args) {
  const int64_t N = args.out.N, row_bytes = args.out.K / 2;
  for (int odd = 0; odd < 2; ++odd) {
    const uint8_t* const first = args.codes + odd * row_bytes;
    const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(first) % 16);
    args.code_shifts[odd] = shift;
    if (!encode_tensor_map(args.code_maps[odd], CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, first - shift,
                           (N + 1 - odd) / 2, shift + row_bytes, 2 * row_bytes, kFusedRows / 2,
                           kRaggedCodePitch)) {
      return false;
    }
  }
  return true;
}

// False where the copy engine cannot be told how a ragged weight lies; for others there is a tile
// that takes no boxes.
bool fused_arguments(RaggedArguments& args, const Fp4FactorView& b, const ProductOutput& out,
                     FusedPlan& plan) {
  args.codes = b.packed.const_data_ptr<uint8_t>();
  args.scales = b.scale.const_data_ptr<uint8_t>();
  const int scale_block = fp4_block_size(b.format), step_scales = kFusedDepth / scale_block;
  args.scale_vectors =
      b.depth() % kFusedDepth == 0 && starts_at_multiple_of(args.scales, 0, step_scales);
  args.amax = b.amax.const_data_ptr<float>();
  args.out = out;
  const bool dense = out.type != DenseType::float32 && out.col_stride == 1;
  args.vectors = dense && out.N % 8 == 0 && starts_at_multiple_of(out.data, out.row_stride * 2, 16);
  args.steps = static_cast<int>(ceil_div(b.depth(), int64_t{kFusedDepth}));
  args.mail.parts = 1;
  if (rows_are_ragged(b.depth(), scale_block)) return map_codes(args);
  const int64_t N = out.N, K = out.K;
  plan.takes_boxes =
      fused_takes_boxes(plan, N, K, scale_block) && starts_at_multiple_of(args.scales, 0, 16) &&
      encode_byte_map(args.codes_map, args.codes, N, K / 2, kFusedRows, 128) &&
      encode_byte_map(args.scales_map, args.scales, N, K / scale_block, kFusedRows, kBoxScales);
  return true;
}

// Has the copy engine read x, its elements in their own order.
bool map_x(FusedArguments& args, const void* x, int64_t row_stride, const FusedPlan& plan) {
  args.x = {static_cast<const uint16_t*>(x), row_stride, 1, true};
  return encode_tensor_map(args.x_map, x, args.out.M, args.out.K, row_stride,
                           plan.tokens / plan.sharers);
}

// Memory of 16-bit elements for an x that the copy engine can read.
OwnedTensor empty_rows(const FusedArguments& args) {
  return OwnedTensor::empty(args.out.M * args.out.K * 2, ScalarType::Byte);
}

// Makes args.x ready for the kernel, in `memory` where it cannot be read as it lies. False where
// the copy engine cannot be told how it lies.
bool bring_dense(FusedArguments& args, OwnedTensor& memory, const TensorView& y,
                 const Fp4FactorView& b, const FusedPlan& plan) {
  const DenseRows x = args.x;
  const int64_t K = args.out.K;
  if (!plan.takes_map) {
    ImageLayout layout;
    memory = empty_image(y, b, plan, layout);
    launch_image(x.vectors ? dense_image_kernel<true> : dense_image_kernel<false>, args, layout,
                 image_starts_early(b, plan), x);
    return true;
  }
  if (x.vectors && x.row_stride >= K) return map_x(args, x.data, x.row_stride, plan);
  memory = empty_rows(args);
  auto* const rows = memory.data_ptr<uint4>();
  const int64_t chunks = args.out.M * (K / 8);
  launch_with({1, true}, dense_rows_kernel,
              static_cast<unsigned>(ceil_div(chunks, int64_t{kImageThreads})), kImageThreads, 0,
              rows, chunks, static_cast<int>(K), x);
  return map_x(args, rows, K, plan);
}

// x in FP4, whose 16-bit form the tensor cores take: float16 holds NVFP4's, bfloat16 MXFP4's. Rows
// of that are what `write` launches a kernel for; empty: widen().
template <typename scalar_t, Fp4Format kFormat>
bool launch_packed(RaggedArguments args, const Fp4FactorView& x, const TensorView& y,
                   const Fp4FactorView& b, const FusedPlan& plan,
                   const std::function<void(void*)>& write) {
  ImageLayout layout;
  OwnedTensor memory;
  if (plan.takes_map) {
    if (!can_widen(x)) return false;
    memory = empty_rows(args);
    auto* const wide = memory.data_ptr<scalar_t>();
    if (!map_x(args, wide, args.out.K, plan)) return false;
    write ? write(wide) : widen(x, wide);
  } else {
    memory = empty_image(y, b, plan, layout);
    const PackedRows rows{x.packed.const_data_ptr<uint8_t>(), x.scale.const_data_ptr<uint8_t>()};
    launch_image(packed_image_kernel<kFormat>, args, layout, image_starts_early(b, plan), rows);
  }
  launch_fused<scalar_t, kFormat>(args, plan);
  return true;
}

}  // namespace

bool fp4_fused_dense(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                     const TensorView& y) {
  FusedPlan plan = plan_for(b, y);
  if (plan.tokens == 0 || x.scalar_type() == ScalarType::Float) return false;
  const auto* const data = x.const_data_ptr<uint16_t>();
  const bool vectors = x.stride(1) == 1 && starts_at_multiple_of(data, x.stride(0) * 2, 16);
  RaggedArguments args{};
  if (!fused_arguments(args, b, product_output(y, b.depth(), bias), plan)) return false;
  args.x = {data, x.stride(0), x.stride(1), vectors};
  OwnedTensor memory;
  if (!bring_dense(args, memory, y, b, plan)) return false;
  with_types(x, b.format, [&](auto element, auto format) {
    launch_fused<decltype(element), decltype(format)::value>(args, plan);
  });
  return true;
}

bool fp4_fused_packed(const Fp4FactorView& x, const Fp4FactorView& b, const TensorView& y,
                      const std::function<void(void*)>& write) {
  FusedPlan plan = plan_for(b, y);
  if (plan.tokens == 0 || !x.contracts_cols || (write && !plan.takes_map) ||
      !starts_at_multiple_of(x.packed.const_data_ptr(), 0, 4)) {
    return false;
  }
  RaggedArguments args{};
  if (!fused_arguments(args, b, product_output(y, b.depth(), TensorView()), plan)) return false;
  if (b.format == Fp4Format::mxfp4) {
    return launch_packed<__nv_bfloat16, Fp4Format::mxfp4>(args, x, y, b, plan, write);
  }
  args.x_amax = x.amax.const_data_ptr<float>();
  args.x_is_nvfp4 = true;
  return launch_packed<__half, Fp4Format::nvfp4>(args, x, y, b, plan, write);
}

}  // namespace my_ops
