#pragma once
// Symmetric GEMM (BLAS: syrk) of the Newton–Schulz iteration of Muon: only the tiles on and above the diagonal are
// computed, about half of the arithmetic.

#include "kernels/device/cublas.hpp"

namespace nanorun::kernels::cuda {

/// out = alpha x xᵀ + beta addend, summed in fp32. The addend is symmetric, and not read where beta is 0.
/// Shapes: x [n, k]; addend, out [n, n]; options.count of each, contiguous. out overlaps neither x nor addend.
/// Where n is a multiple of 128 and k of 64, out is exactly symmetric; elsewhere this is a gemm(). Throws as gemm().
void symmetric_gemm(Stream stream, const GemmOptions& options, Mat<const bf16> x, Mat<const bf16> addend,
                    Mat<bf16> out);

}  // namespace nanorun::kernels::cuda
