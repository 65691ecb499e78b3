// Host: from a dtype, known at run time, to the C++ type that stores it. Needs no torch.
#pragma once

#include "common/tensor_view.h"

namespace my_ops {

template <typename... T>
struct Types {};

template <typename... T>
constexpr bool has_dtype(Types<T...>, c10::ScalarType dtype) {
  return ((static_cast<ScalarType>(dtype) == kScalarType<T>) || ...);
}

[[noreturn]] void raise_no_kernel(ScalarType dtype);

// Calls function(T()) with the one of the types T that stores `dtype`, as AT_DISPATCH does, but
// without its headers and without a macro. Operators have checked the dtype before.
template <typename... T, typename Function>
void dispatch(Types<T...>, ScalarType dtype, const Function& function) {
  static_assert(((kScalarType<T> != ScalarType::Undefined) && ...), "dtype.h has its number");
  const bool found = ((dtype == kScalarType<T> && (function(T()), true)) || ...);
  if (!found) raise_no_kernel(dtype);
}

}  // namespace my_ops
