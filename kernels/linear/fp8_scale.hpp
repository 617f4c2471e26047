#pragma once
// Scales of operands in 8-bit floating-point formats (Micikevicius et al. 2022, arXiv:2209.05433): aq = F(a / s).

#include <cstdint>
#include <type_traits>

#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// e4m3: largest 448. e5m2: largest 57344. Conversions round to nearest even and saturate; NaN stays NaN.
enum class Fp8Format { e4m3, e5m2 };

constexpr float largest_of(Fp8Format format) { return format == Fp8Format::e4m3 ? 448.0f : 57344.0f; }
/// Magnitudes above it would round to more than the largest: what counts as saturated.
constexpr float saturates_above(Fp8Format format) { return format == Fp8Format::e4m3 ? 464.0f : 61440.0f; }

/// An element of either format in CUDA implementations.
struct fp8 {
  std::uint8_t bits = 0;
};
/// An element in 8 bits beside activations of type T. Portable implementations keep its value as a T, which emulates
/// the tensor cores.
template <class T>
using Fp8 = std::conditional_t<std::is_floating_point_v<T>, T, fp8>;

/// The scale s = margin max(m |f|, 1e-12) / 448 of an operand, from a maximum m in the tensors' memory and a factor f
/// there, or 1. With the maximum 448 s the margin 1 gives the scale s. The margin of e5m2 is 1/128 of that of e4m3.
template <class A>
struct Fp8Scale {
  const A* maximum = nullptr;
  double margin = 1;
  const A* factor = nullptr;

  /// Device code may call it.
  constexpr float value() const {
    double largest = *maximum;
    if (factor) largest *= *factor < 0 ? -*factor : *factor;
    return static_cast<float>(margin * (largest < 1e-12 ? 1e-12 : largest) / 448);
  }
};

}  // namespace nanorun::kernels
