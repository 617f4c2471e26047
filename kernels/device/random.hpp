#pragma once
// Counter-based random numbers: number i of a sequence depends on the sequence's key and i alone.
//   r(i) = splitmix64(key + i * 0x9E3779B97F4A7C15),  u(i) = (r(i) >> 11) / 2^53
//   uniform on [-b, b): b (2 u(i) - 1);  normal: sqrt(-2 ln(1 - u(2i))) cos(2 pi u(2i+1))
// where splitmix64(z) is one step of SplitMix64 from state z: it adds the constant, then applies the output function
// (Steele, Lea and Flood 2014). Numbers are computed in double, then rounded.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15;

/// One step of SplitMix64 from state z.
constexpr std::uint64_t splitmix64(std::uint64_t z) {
  z += golden_gamma;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// u(i), in [0, 1).
constexpr double unit_uniform(std::uint64_t key, std::uint64_t i) {
  return static_cast<double>(splitmix64(key + i * golden_gamma) >> 11) * 0x1p-53;
}

NANORUN_DECLARE_OPS({
  /// x[k] = uniform number first + k of [-bound, bound)
  /// CUDA: A = float.
  template <class A>
  void fill_uniform(Stream stream, Vec<A> x, std::uint64_t key, std::uint64_t first, double bound);

  /// x[k] = deviation times standard normal number first + k
  /// CUDA: A = float. The last place may differ from the portable implementation's.
  template <class A>
  void fill_normal(Stream stream, Vec<A> x, std::uint64_t key, std::uint64_t first, double deviation);
})

}  // namespace nanorun::kernels
