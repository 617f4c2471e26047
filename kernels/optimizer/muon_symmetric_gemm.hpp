#pragma once
// GEMMs of the iterations of Muon whose results are symmetric: only the tiles on and above the diagonal are computed,
// about half of the arithmetic. T = bf16 or fp16; sums are fp32.

#include "kernels/device/cublas.hpp"

namespace nanorun::kernels::cuda {

/// Whether the GEMMs below compute one triangle of out [n, n] from factors [n, k]; elsewhere they are gemm().
constexpr bool computes_triangle(int n, int k) { return n % 128 == 0 && k % 64 == 0; }

/// Tiles of this side on or above the diagonal of [n, n].
constexpr int triangle_tiles(int n, int side) { return n / side * (n / side + 1) / 2; }

/// Whether Hopper computes `count` matrices in squares of 256 rather than in tiles of 128. A pair of SMs computes a
/// square, each SM two tiles. A square reads half the bytes from L2, which bind tiles, and so takes at most 4/5 of the
/// time of four tiles. But squares cover more beyond the triangle, and all pairs take the time of the one with the most
/// squares; that has two at least, since nothing hides its first loads and last stores.
constexpr bool computes_squares(int n, int k, int count, int sm_count) {
  if (n % 256 != 0 || k < 256) return false;
  const int pairs = sm_count / 2, rounds = (count * triangle_tiles(n, 256) + pairs - 1) / pairs;
  return rounds >= 2 && 4 * (4 * rounds * pairs) <= 5 * count * triangle_tiles(n, 128);
}

/// out = alpha s² x xᵀ + beta addend (BLAS: syrk). The addend is symmetric, and not read where beta is 0.
/// Shapes: x [n, k]; addend, out [n, n]; options.count of each, contiguous. out overlaps neither x nor addend.
/// scales [options.count] in device memory: s of each matrix; null: 1. The sums of x xᵀ must be finite before s.
/// With computes_triangle(n, k) out is exactly symmetric. Throws as gemm(), and std::invalid_argument where there are
/// scales but gemm() would compute out.
template <class T>
void symmetric_gemm(Stream stream, const GemmOptions& options, Mat<const std::type_identity_t<T>> x,
                    Mat<const std::type_identity_t<T>> addend, Mat<T> out, const float* scales = nullptr);

/// out = (alpha x + beta I) y, for symmetric x and y that commute, such as polynomials of one symmetric matrix: their
/// product is symmetric. x, y, out [n, n], options.count of each, contiguous; out overlaps neither x nor y.
/// With computes_triangle(n, n) out is exactly symmetric. Throws as gemm().
template <class T>
void symmetric_product(Stream stream, const GemmOptions& options, Mat<const std::type_identity_t<T>> x,
                       Mat<const std::type_identity_t<T>> y, Mat<T> out);

}  // namespace nanorun::kernels::cuda
