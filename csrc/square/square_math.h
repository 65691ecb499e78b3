// Host and device: the two formulas of square, each rounded once.
#pragma once

#include <ATen/OpMathType.h>
#include <c10/macros/Macros.h>
#include <c10/util/complex.h>

#include <type_traits>

namespace my_ops {

template <typename scalar_t>
C10_HOST_DEVICE inline scalar_t square_value(scalar_t x) {
  if constexpr (std::is_integral_v<scalar_t>) {
    // Unsigned, where overflow wraps by definition; 64 bits wide, where nothing is promoted to int.
    return static_cast<scalar_t>(static_cast<uint64_t>(x) * static_cast<uint64_t>(x));
  } else {
    const auto value = static_cast<at::opmath_type<scalar_t>>(x);
    return static_cast<scalar_t>(value * value);
  }
}

template <typename scalar_t>
C10_HOST_DEVICE inline scalar_t square_gradient(scalar_t grad, scalar_t x) {
  using acc_t = at::opmath_type<scalar_t>;
  auto value = static_cast<acc_t>(x);
  if constexpr (c10::is_complex<acc_t>::value) value = acc_t(value.real(), -value.imag());
  return static_cast<scalar_t>(static_cast<acc_t>(grad) * value * acc_t(2));
}

}  // namespace my_ops
