// Checks from how many rows of x on the sums of fp4_linear are ordered otherwise, as
// docs/guarantees.md says; with arguments `M K N scale_block ...`, says which kernel takes them.
// Built and run by tests/test_matmul_plan.py.
#include <cstdlib>
#include <random>

#include "fp4_kernel_of.h"
#include "plan_check.h"

namespace {

void check_rows_that_show(int64_t N, int64_t K, const std::vector<int64_t>& documented) {
  std::vector<int64_t> found;
  for (int64_t M = 2; M <= documented.back(); ++M) {
    if (kernel_of(M, N, K, 16).order != kernel_of(M - 1, N, K, 16).order) found.push_back(M);
  }
  for (const int64_t M : found)
    std::printf("another order from %lld on\n", static_cast<long long>(M));
  expect(found == documented, "rows that show in the last bits", documented.back(), N, K, kH200Sms);
}

// Of any weight, where it is aligned and K no larger than 8192.
void check_few_rows_that_show() {
  std::mt19937_64 random(5);
  for (int i = 0; i < 100000; ++i) {
    const int scale_block = i % 2 ? 16 : 32;
    const int64_t N = 16 + random() % 20000;
    const int64_t K = random() % 3 == 0 ? 4096 : 16 * (1 + random() % 512);
    if (N * K < 1 << 20) continue;
    const bool ragged = my_ops::rows_are_ragged(K, scale_block);
    const int64_t sm_rows = my_ops::ceil_div(N, int64_t{kH200Sms});
    const bool own_slices = K == 4096 && sm_rows > 24 && sm_rows <= 40;
    for (int64_t M = 2; M <= 24; ++M) {
      if (kernel_of(M, N, K, scale_block).order == kernel_of(M - 1, N, K, scale_block).order) {
        continue;
      }
      const bool documented =
          M == 2 ? own_slices || (ragged && K > 4096) : ragged || M == 3 || M == 9 || M == 17;
      expect(documented, "rows that show in the last bits", M, N, K, kH200Sms);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i + 3 < count; i += 4) {
    const auto at = [&](int j) { return std::atoll(arguments[i + j]); };
    std::printf("%s\n", kernel_of(at(0), at(2), at(1), static_cast<int>(at(3))).by.c_str());
  }
  if (count > 1) return 0;
  check_rows_that_show(8192, 8192, {17, 25, 33, 129, 257, 513, 769, 961});
  check_rows_that_show(4096, 4096, {2, 33, 129, 257, 513, 1025});
  check_few_rows_that_show();
  return wrong > 0;
}
