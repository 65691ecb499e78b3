// Checks the plans of csrc/matmul/simt_plan.h, matvec_plan.h and tf32_plan.h over many shapes:
// prints what is wrong, and how often each tile was chosen. Built and run by
// tests/test_matmul_plan.py with the host compiler alone.
#include <cstdio>
#include <random>

#include "matmul/matvec_plan.h"
#include "matmul/simt_plan.h"
#include "matmul/tf32_plan.h"
#include "plan_check.h"

namespace {

using my_ops::ceil_div;

constexpr int kSms[] = {1, 48, 108, 132, 148};

template <int kCount>
void check_tiles(const my_ops::SimtTileShape (&shapes)[kCount], int64_t M, int64_t N, int64_t K,
                 int sms, bool clusters, int (&chosen)[kCount][3]) {
  const my_ops::SimtPlan plan = my_ops::plan_simt(shapes, M, N, K, sms, clusters);
  const my_ops::SimtTileShape& shape = shapes[static_cast<int>(plan.tile)];
  ++chosen[static_cast<int>(plan.tile)][plan.clustered ? 2 : plan.slices > 1];
  expect(shape.tile == plan.tile, "shapes in the order of the tiles", M, N, K, sms);
  const int64_t rows = plan.transposed ? N : M, cols = plan.transposed ? M : N;
  expect(plan.whole_tiles >= 0 && plan.cut_tiles >= 0, "counts", M, N, K, sms);
  expect(
      plan.whole_tiles + plan.cut_tiles == ceil_div(rows, shape.rows) * ceil_div(cols, shape.cols),
      "tiles cover C", M, N, K, sms);
  expect((plan.cut_tiles > 0) == (plan.slices > 1), "only cut tiles have slices", M, N, K, sms);
  expect(plan.slices == 1 || K / plan.slices >= (plan.clustered ? 64 : 128), "slices are deep", M,
         N, K, sms);
  expect(clusters || !plan.clustered, "clusters only where there are some", M, N, K, sms);
  expect(!plan.clustered || (plan.whole_tiles == 0 && plan.slices > 1 && plan.slices <= 8),
         "clusters of all tiles, at most 8 blocks", M, N, K, sms);
  expect(!plan.transposed || plan.tile == my_ops::SimtTile::wide, "only wide tiles are transposed",
         M, N, K, sms);
  expect(plan.whole_tiles + plan.cut_tiles * plan.slices < int64_t{1} << 31, "one grid", M, N, K,
         sms);
}

void check_matvec(int64_t cols, int64_t K, int sms, int64_t unit, int64_t group_cols) {
  const my_ops::MatvecPlan plan = my_ops::plan_matvec(cols, group_cols, K, unit, 4 * sms);
  expect(plan.groups == ceil_div(cols, group_cols), "groups cover the columns", 1, cols, K, sms);
  expect(plan.depth > 0 && plan.depth % unit == 0, "slices of whole units", 1, cols, K, sms);
  expect(plan.groups * plan.slices < int64_t{1} << 31, "one grid", 1, cols, K, sms);
  expect(plan.slices == ceil_div(K, plan.depth), "slices cover K", 1, cols, K, sms);
}

void check_tf32(int64_t M, int64_t N, int64_t K, int sms, int (&chosen)[4][2]) {
  const my_ops::Tf32Plan plan = my_ops::plan_tf32(M, N, K, sms);
  const my_ops::Tf32Plan other = my_ops::plan_tf32(N, M, K, sms);
  expect(plan.shape == other.shape && plan.slices == other.slices, "the same for C and C^T", M, N,
         K, sms);
  if (plan.shape < 0) return;
  expect((M | N | K) % 4 == 0, "rows of whole vectors", M, N, K, sms);
  expect(M * N * K > int64_t{1} << 27, "small products are \"ieee\"", M, N, K, sms);
  expect(plan.slices <= my_ops::kTf32Shapes[plan.shape].max_slices, "no more slices than may be", M,
         N, K, sms);
  ++chosen[plan.shape][plan.slices > 1];
}

}  // namespace

int main() {
  std::mt19937_64 random(5);
  const auto size = [&] { return static_cast<int64_t>(1) << random() % 14; };
  const auto near_it = [&](int64_t n) { return n + static_cast<int64_t>(random() % 16); };
  int float32[3][3] = {}, float64[3][3] = {}, tf32[4][2] = {};
  for (int i = 0; i < 200000; ++i) {
    const int64_t M = near_it(size()), N = near_it(size()),
                  K = near_it(size() * (1 + random() % 8));
    const int sms = kSms[i % 5];
    check_tiles(my_ops::kFloat32Shapes, M, N, K, sms, i % 3 > 0, float32);
    check_tiles(my_ops::kFloat64Shapes, M, N, K, sms, i % 3 > 0, float64);
    check_tf32(M / 4 * 4, N / 4 * 4, K / 4 * 4, sms, tf32);
    check_tf32(M, N, K, sms, tf32);
    for (const int64_t group_cols : {4, 16, 32}) check_matvec(N, K, sms, 128 << i % 2, group_cols);
  }
  for (int tile = 0; tile < 3; ++tile) {
    for (const auto& count : {float32[tile], float64[tile]}) {
      std::printf("tile %d: %d whole, %d cut, %d in clusters\n", tile, count[0], count[1],
                  count[2]);
      expect(count[0] > 0 && count[1] > 0 && count[2] > 0,
             "every tile is chosen, whole, cut and in clusters", 0, 0, 0, tile);
    }
  }
  for (int tile = 0; tile < 4; ++tile) {
    std::printf("tf32 tile %d: %d whole, %d in slices\n", tile, tf32[tile][0], tf32[tile][1]);
    expect(tf32[tile][0] > 0, "every tile is chosen in TF32", 0, 0, 0, tile);
  }
  expect(tf32[0][1] > 0, "TF32 is cut into slices", 0, 0, 0, 0);
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
