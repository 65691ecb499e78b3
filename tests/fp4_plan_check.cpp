// Checks the plans of csrc/fp4_matmul/panel_plan.h over many shapes: prints what is wrong, and
// fails too if some kind of plan was never chosen. Built and run by tests/test_matmul_plan.py.
#include <cstdio>
#include <random>

#include "fp4_matmul/panel_plan.h"

namespace {

int wrong = 0;

void expect(bool holds, const char* what, int64_t M, int64_t N, int64_t K, int sms) {
  if (holds) return;
  ++wrong;
  std::printf("wrong: %s at %lld %lld %lld on %d\n", what, static_cast<long long>(M),
              static_cast<long long>(N), static_cast<long long>(K), sms);
}

}  // namespace

int main() {
  std::mt19937_64 random(0);
  int chosen[8][3] = {};
  for (int i = 0; i < 2000000; ++i) {
    const int sms = i % 2 ? 132 : 78, scale_block = i % 4 < 2 ? 16 : 32;
    const int64_t M = 1 + random() % 20;
    const int64_t N = 1 + random() % (int64_t{1} << (4 + random() % 16));
    const int64_t K = 64 * (1 + random() % (int64_t{1} << (random() % 26)));
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
  return wrong > 0;
}
