#pragma once
// What CUDA sources of products in 8 bits share: the order of weights' rows, counters, checks of arguments.
//
// An accumulator fragment has two columns of each eight. The rows of weights in Fp8Rows::fused stand in another order,
// so that they are eight neighbouring columns of the result for a thread, which it stores in one access: in each 32
// rows, row 8 i + 2 j + k takes the place of row 8 j + 2 i + k, with i, j < 4 and k < 2.

#include <cassert>
#include <stdexcept>
#include <string>

#include "kernels/device/vec.cuh"
#include "kernels/linear/fp8_scale.hpp"

namespace nanorun::kernels::cuda {

constexpr int fused_rows = 32;
/// The order is its own inverse.
__device__ inline int fused_row(int row) { return (row & ~30) | (row & 6) << 2 | (row & 24) >> 2; }

/// *saturated += the counts of a warp's lanes, all of which call it.
__device__ inline void add_saturated(std::uint64_t* saturated, int count) {
  const int in_warp = __reduce_add_sync(~0u, count);
  if (threadIdx.x % warp_size == 0 && in_warp > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(saturated), static_cast<unsigned long long>(in_warp));
  }
}

template <class F>
__device__ bool saturates(float x) {
  return fabsf(x) > saturates_above(std::is_same_v<F, e4m3> ? Fp8Format::e4m3 : Fp8Format::e5m2);
}

inline void require_fp8_sides(const char* name, int rows, int cols) {
  if (rows % fp8_width != 0 || cols % fp8_width != 0) {
    throw std::invalid_argument(std::string(name) + ": rows and columns must be multiples of 128");
  }
}

/// A null matrix passes.
template <class F>
void require_fp8_rows(const char* name, Mat<F> q) {
  if (q && (q.ld % 16 != 0 || reinterpret_cast<std::uintptr_t>(q.data) % 16 != 0)) {
    throw std::invalid_argument(std::string(name) + ": rows must be aligned to 16 bytes");
  }
}

template <class F>
Mat<const F> as(Mat<const fp8> x) {
  return {reinterpret_cast<const F*>(x.data), x.rows, x.cols, x.ld};
}

/// Calls body(F()) with the format's type.
template <class Body>
void with_format(Fp8Format format, const Body& body) {
  if (format == Fp8Format::e4m3) return body(e4m3());
  body(e5m2());
}

inline void require_product(const char* name, [[maybe_unused]] int rows, Mat<const fp8> a, Mat<const fp8> b,
                            [[maybe_unused]] int cols) {
  assert(a.rows == rows && b.rows == cols && a.cols == b.cols);
  require_fp8_rows(name, a);
  require_fp8_rows(name, b);
  require_fp8_sides(name, b.rows, b.cols);
}

}  // namespace nanorun::kernels::cuda
