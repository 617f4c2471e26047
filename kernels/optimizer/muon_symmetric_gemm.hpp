#pragma once
// GEMMs of the iterations of Muon whose results are symmetric: only the tiles on and above the diagonal are computed,
// about half of the arithmetic. T = bf16 or fp16; sums are fp32.

#include "kernels/device/cublas.hpp"

namespace nanorun::kernels::cuda {

/// Whether the GEMMs below compute one triangle of out [n, n] from factors [n, k]; elsewhere they are gemm().
constexpr bool computes_triangle(int n, int k) { return n % 128 == 0 && k % 64 == 0; }

/// out = alpha x xᵀ + beta addend (BLAS: syrk). The addend is symmetric, and not read where beta is 0.
/// Shapes: x [n, k]; addend, out [n, n]; options.count of each, contiguous. out overlaps neither x nor addend.
/// With computes_triangle(n, k) out is exactly symmetric. Throws as gemm().
template <class T>
void symmetric_gemm(Stream stream, const GemmOptions& options, Mat<const std::type_identity_t<T>> x,
                    Mat<const std::type_identity_t<T>> addend, Mat<T> out);

/// out = (alpha x + beta I) y, for symmetric x and y that commute, such as polynomials of one symmetric matrix: their
/// product is symmetric. x, y, out [n, n], options.count of each, contiguous; out overlaps neither x nor y.
/// With computes_triangle(n, n) out is exactly symmetric. Throws as gemm().
template <class T>
void symmetric_product(Stream stream, const GemmOptions& options, Mat<const std::type_identity_t<T>> x,
                       Mat<const std::type_identity_t<T>> y, Mat<T> out);

}  // namespace nanorun::kernels::cuda
