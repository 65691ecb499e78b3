// Host and device: the two formulas of square, each rounded once.
#pragma once

#include <torch/headeronly/macros/Macros.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <torch/headeronly/util/complex.h>

#include <type_traits>

namespace my_ops {

template <typename scalar_t>
constexpr bool kIsComplex =
    std::is_same_v<scalar_t, c10::complex<float>> || std::is_same_v<scalar_t, c10::complex<double>>;

// What a dtype is computed in.
template <typename scalar_t>
using acc_for = std::conditional_t<std::is_same_v<scalar_t, c10::Half> ||
                                       std::is_same_v<scalar_t, c10::BFloat16>,
                                   float, scalar_t>;

template <typename scalar_t>
C10_HOST_DEVICE inline scalar_t square_value(scalar_t x) {
  if constexpr (std::is_integral_v<scalar_t>) {
    // Unsigned, for overflow to wrap by definition; of 64 bits, as less would be promoted to int.
    return static_cast<scalar_t>(static_cast<uint64_t>(x) * static_cast<uint64_t>(x));
  } else {
    const auto value = static_cast<acc_for<scalar_t>>(x);
    return static_cast<scalar_t>(value * value);
  }
}

template <typename scalar_t>
C10_HOST_DEVICE inline scalar_t square_gradient(scalar_t grad, scalar_t x) {
  using acc_t = acc_for<scalar_t>;
  auto value = static_cast<acc_t>(x);
  if constexpr (kIsComplex<acc_t>) value = acc_t(value.real(), -value.imag());
  return static_cast<scalar_t>(static_cast<acc_t>(grad) * value * acc_t(2));
}

}  // namespace my_ops
