// Host: dtypes, by torch's names and numbers, and the C++ types that store them. Needs no torch.
//
// torch's header of them includes every type that torch has, float8 and quantized ones too, and
// would be most of the time that a short .cu file takes to compile: see tensor_view.h.
// torch_bridge.cpp compares the numbers with torch's.
#pragma once

#include <cstdint>

namespace c10 {
enum class ScalarType : int8_t;
struct Half;
struct BFloat16;
template <typename T>
struct complex;
}  // namespace c10

namespace my_ops {

enum class ScalarType : int8_t {
  Undefined = -1,  // of an undefined tensor; also what no kernel of this library takes
  Byte = 0,
  Char = 1,
  Short = 2,
  Int = 3,
  Long = 4,
  Half = 5,
  Float = 6,
  Double = 7,
  ComplexFloat = 9,
  ComplexDouble = 10,
  BFloat16 = 15,
};

template <typename T>
inline constexpr ScalarType kScalarType = ScalarType::Undefined;
template <>
inline constexpr ScalarType kScalarType<uint8_t> = ScalarType::Byte;
template <>
inline constexpr ScalarType kScalarType<int8_t> = ScalarType::Char;
template <>
inline constexpr ScalarType kScalarType<int16_t> = ScalarType::Short;
template <>
inline constexpr ScalarType kScalarType<int32_t> = ScalarType::Int;
template <>
inline constexpr ScalarType kScalarType<int64_t> = ScalarType::Long;
template <>
inline constexpr ScalarType kScalarType<c10::Half> = ScalarType::Half;
template <>
inline constexpr ScalarType kScalarType<float> = ScalarType::Float;
template <>
inline constexpr ScalarType kScalarType<double> = ScalarType::Double;
template <>
inline constexpr ScalarType kScalarType<c10::complex<float>> = ScalarType::ComplexFloat;
template <>
inline constexpr ScalarType kScalarType<c10::complex<double>> = ScalarType::ComplexDouble;
template <>
inline constexpr ScalarType kScalarType<c10::BFloat16> = ScalarType::BFloat16;

}  // namespace my_ops
