// rmsnorm on the CPU: plain loops over rows, the readable twin of the CUDA kernels. 16-bit rows are
// computed in float32, all others in float64 and rounded once.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/cpu.h"
#include "rmsnorm/rmsnorm.h"
#include "rmsnorm/rmsnorm_dispatch.h"

namespace my_ops {
namespace {

template <typename... stored_t>
using acc_for = std::conditional_t<((sizeof(stored_t) == 2) && ...), float, double>;

// Elements that are worth a thread: 16384 take about 10 us.
constexpr int64_t kGrainElements = 16384;
int64_t grain_rows(int64_t H) { return std::max<int64_t>(1, kGrainElements / H); }

// term(0) + ... + term(H - 1) in as many independent sums as fill the caller's vector registers.
template <typename acc_t, typename Term>
[[gnu::always_inline]] inline acc_t sum_over_row(int64_t H, const Term& term) {
  constexpr int kSums = 16;
  acc_t sums[kSums] = {};
  int64_t column = 0;
  for (; column + kSums <= H; column += kSums) {
    for (int i = 0; i < kSums; ++i) sums[i] += term(column + i);
  }
  acc_t total = 0;
  for (; column < H; ++column) total += term(column);
  for (const acc_t sum : sums) total += sum;
  return total;
}

template <typename x_t, typename w_t, typename y_t>
MY_OPS_VECTORS void forward_row(const x_t* x, const w_t* weight, const RMSNormOptions& options,
                                int64_t H, y_t* y) {
  using acc_t = acc_for<x_t, y_t>;
  const auto square = [&](int64_t column) {
    const auto value = static_cast<acc_t>(x[column]);
    return value * value;
  };
  const double mean = sum_over_row<acc_t>(H, square) / static_cast<double>(H);
  const auto rstd = static_cast<acc_t>(1 / std::sqrt(mean + options.eps));
  const auto offset = static_cast<acc_t>(options.weight_offset);
  const auto weight_at = [&](int64_t column) {
    return weight == nullptr ? acc_t(1) : static_cast<acc_t>(weight[column]) + offset;
  };
  if (options.round_before_weight) {
    using product_t = std::conditional_t<std::is_same_v<x_t, double>, double, float>;
    const auto rounded_rstd = static_cast<product_t>(rstd);
    for (int64_t column = 0; column < H; ++column) {
      const auto normalized = static_cast<x_t>(static_cast<product_t>(x[column]) * rounded_rstd);
      y[column] = static_cast<y_t>(static_cast<product_t>(normalized) *
                                   static_cast<product_t>(weight_at(column)));
    }
  } else {
    for (int64_t column = 0; column < H; ++column) {
      y[column] = static_cast<y_t>(static_cast<acc_t>(x[column]) * rstd * weight_at(column));
    }
  }
}

// Calls function(y) with a zero of y's dtype, one of those that go with x_t.
template <typename x_t, typename Function>
void dispatch_output(const TensorView& y, const Function& function) {
  if constexpr (std::is_same_v<x_t, double>) {
    function(double(0));
  } else if (y.scalar_type() == ScalarType::Float) {
    function(float(0));
  } else if (y.scalar_type() == ScalarType::Half) {
    if constexpr (!std::is_same_v<x_t, c10::BFloat16>) function(c10::Half(0));
  } else {
    if constexpr (!std::is_same_v<x_t, c10::Half>) function(c10::BFloat16(0));
  }
}

}  // namespace

void rmsnorm_forward_cpu(const TensorView& x, const TensorView& residual, const TensorView& weight,
                         const RMSNormOptions& options, const TensorView& y,
                         const TensorView& sum) {
  const int64_t H = x.size(-1), rows = x.numel() / H;
  const RowLayout x_layout = row_layout(x);
  const RowLayout residual_layout = residual.defined() ? row_layout(residual) : RowLayout();
  for (const TensorView* result : {&y, &sum}) prefer_huge_pages(*result);
  rmsnorm_dispatch(x, weight, [&](auto x_zero, auto w_zero) {
    using x_t = decltype(x_zero);
    using w_t = decltype(w_zero);
    const x_t* x_data = x.const_data_ptr<x_t>();
    const x_t* residual_data = residual.const_data_ptr<x_t>();
    const w_t* weight_data = weight.const_data_ptr<w_t>();
    x_t* sum_data = sum.mutable_data_ptr<x_t>();
    dispatch_output<x_t>(y, [&](auto y_zero) {
      auto* y_data = y.mutable_data_ptr<decltype(y_zero)>();
      at::parallel_for(0, rows, grain_rows(H), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const x_t* x_row = x_data + x_layout.offset(row);
          if (residual_data != nullptr) {
            const x_t* residual_row = residual_data + residual_layout.offset(row);
            x_t* sum_row = sum_data + row * H;
            for (int64_t column = 0; column < H; ++column) {
              sum_row[column] = x_row[column] + residual_row[column];
            }
            x_row = sum_row;
          }
          forward_row(x_row, weight_data, options, H, y_data + row * H);
        }
      });
    });
  });
}

namespace {

// The rows of a backward are divided into parts, each with its own sum for the weight's gradient,
// by the number of rows alone: the order of addition does not depend on the number of threads.
int64_t backward_parts(int64_t rows) { return std::clamp<int64_t>(rows / 16, 1, 32); }

// Writes grad_x (unless null) of one row, and adds its share to grad_weight (unless null).
template <typename x_t, typename w_t, typename acc_t>
MY_OPS_VECTORS void backward_row(const x_t* grad, const x_t* grad_sum, const x_t* x,
                                 const w_t* weight, const RMSNormOptions& options, int64_t H,
                                 x_t* grad_x, acc_t* grad_weight) {
  const auto offset = static_cast<acc_t>(options.weight_offset);
  const auto x_at = [&](int64_t column) { return static_cast<acc_t>(x[column]); };
  const auto weighted_grad_at = [&](int64_t column) {
    const auto value = static_cast<acc_t>(grad[column]);
    return weight == nullptr ? value : value * (static_cast<acc_t>(weight[column]) + offset);
  };
  const auto square = [&](int64_t column) { return x_at(column) * x_at(column); };
  const double mean_square = sum_over_row<acc_t>(H, square) / static_cast<double>(H);
  const double rstd_exact = 1 / std::sqrt(mean_square + options.eps);
  const auto rstd = static_cast<acc_t>(rstd_exact);
  if (grad_x != nullptr) {
    const auto product = [&](int64_t column) { return weighted_grad_at(column) * x_at(column); };
    const auto mean =
        static_cast<acc_t>(sum_over_row<acc_t>(H, product) * rstd_exact / static_cast<double>(H));
    for (int64_t column = 0; column < H; ++column) {
      acc_t value = rstd * (weighted_grad_at(column) - x_at(column) * rstd * mean);
      if (grad_sum != nullptr) value += static_cast<acc_t>(grad_sum[column]);
      grad_x[column] = static_cast<x_t>(value);
    }
  }
  if (grad_weight != nullptr) {
    for (int64_t column = 0; column < H; ++column) {
      grad_weight[column] += static_cast<acc_t>(grad[column]) * (x_at(column) * rstd);
    }
  }
}

}  // namespace

void rmsnorm_backward_cpu(const TensorView& grad, const TensorView& grad_sum, const TensorView& x,
                          const TensorView& weight, const RMSNormOptions& options,
                          const TensorView& grad_x, const TensorView& grad_weight) {
  const int64_t H = x.size(-1), rows = x.numel() / H;
  const RowLayout grad_layout = row_layout(grad);
  const RowLayout grad_sum_layout = grad_sum.defined() ? row_layout(grad_sum) : RowLayout();
  const RowLayout x_layout = row_layout(x);
  prefer_huge_pages(grad_x);
  rmsnorm_dispatch(x, weight, [&](auto x_zero, auto w_zero) {
    using x_t = decltype(x_zero);
    using w_t = decltype(w_zero);
    using acc_t = acc_for<x_t>;
    const x_t* grad_data = grad.const_data_ptr<x_t>();
    const x_t* grad_sum_data = grad_sum.const_data_ptr<x_t>();
    const x_t* x_data = x.const_data_ptr<x_t>();
    const w_t* weight_data = weight.const_data_ptr<w_t>();
    x_t* grad_x_data = grad_x.mutable_data_ptr<x_t>();

    const int64_t parts = backward_parts(rows);
    std::vector<acc_t> part_sums(grad_weight.defined() ? parts * H : 0);
    const int64_t grain_parts = std::max<int64_t>(1, grain_rows(H) * parts / rows);
    at::parallel_for(0, parts, grain_parts, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        acc_t* part_sum = grad_weight.defined() ? part_sums.data() + part * H : nullptr;
        for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
          backward_row(
              grad_data + grad_layout.offset(row),
              grad_sum_data == nullptr ? nullptr : grad_sum_data + grad_sum_layout.offset(row),
              x_data + x_layout.offset(row), weight_data, options, H,
              grad_x_data == nullptr ? nullptr : grad_x_data + row * H, part_sum);
        }
      }
    });
    if (!grad_weight.defined()) return;
    w_t* grad_weight_data = grad_weight.mutable_data_ptr<w_t>();
    for (int64_t column = 0; column < H; ++column) {
      acc_t sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += part_sums[part * H + column];
      grad_weight_data[column] = static_cast<w_t>(sum);
    }
  });
}

}  // namespace my_ops
