// Host: division of counts, rounded up. Needs no torch.
#pragma once

#include <type_traits>

namespace my_ops {

template <typename T>
constexpr T ceil_div(T numerator, std::common_type_t<T> denominator) {
  return (numerator + denominator - 1) / denominator;
}

}  // namespace my_ops
