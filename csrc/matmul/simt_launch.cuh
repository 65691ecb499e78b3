// Launches a product as planned by simt_plan.h. Host side of .cu files, needs no torch.
#pragma once

#include <algorithm>

#include "common/launch.cuh"
#include "common/tensor_view.h"
#include "matmul/simt_plan.h"
#include "matmul/simt_product.cuh"

namespace my_ops {

template <class Tile>
constexpr size_t kTileBytes = sizeof(typename Tile::scalar_t) * Tile::kRows * Tile::kCols;

// Whether blocks of clusters can add the slices of tiles up to `Tile` on the current device.
template <class Tile>
bool adds_in_clusters() {
  return runs_clusters(simt::sum_slices_kernel<Tile>) &&
         kTileBytes<Tile> <= current_device_properties().sharedMemPerBlockOptin;
}

// `kernel` is given the operands and the product (or output), which knows the plan already.
template <class Tile, class Kernel, class Product, class... Operands>
void launch_plan(const SimtPlan& plan, Kernel kernel, ScalarType dtype, Product product,
                 const Operands&... operands) {
  using scalar_t = typename Tile::scalar_t;
  OwnedTensor partial;
  if (plan.cut_tiles > 0 && !plan.clustered) {
    partial = OwnedTensor::empty(plan.slices * plan.cut_tiles * Tile::kRows * Tile::kCols, dtype);
    product.partial = partial.data_ptr<scalar_t>();
  }
  LaunchOptions options;
  size_t shared_bytes = Tile::kSharedBytes;
  if (plan.clustered) {
    options.cluster = static_cast<unsigned>(plan.slices);
    shared_bytes = std::max(shared_bytes, kTileBytes<Tile>);
  }
  const bool overlaps = runs_clusters(kernel);
  options.overlapping = overlaps && product.only_if != nullptr;
  const auto blocks = static_cast<uint32_t>(plan.whole_tiles + plan.cut_tiles * plan.slices);
  launch_with(options, kernel, blocks, Tile::kThreads, shared_bytes, operands..., product);
  if (!partial.defined()) return;
  const simt::Output<scalar_t>& output = product;
  launch_with({1, overlaps}, simt::sum_slices_kernel<Tile>, simt::sum_blocks<Tile>(plan.cut_tiles),
              dim3(simt::kSumStrips, simt::kSumParts), 0, output);
}

}  // namespace my_ops
