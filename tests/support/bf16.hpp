#pragma once
// Floats in the types of a build's tensors and back.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::test {

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

/// x in T: itself, or rounded to the nearest bf16, ties to even, or truncated.
template <class T>
T from_float(float x, bool truncates = false) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (std::isnan(x)) return {0xFFFF};
    if (truncates) return {static_cast<std::uint16_t>(bits >> 16)};
    return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
  }
}

}  // namespace nanorun::kernels::test
