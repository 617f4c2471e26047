#pragma once
// Product of matrices with their own transposes, for the Newton-Schulz iteration: only the tiles on and above the
// diagonal are computed.

#include "kernels/cublas.hpp"

namespace nanorun::kernels::cuda {

/// out = alpha x xᵀ + beta addend, summed in fp32; addend, which is symmetric, is read unless beta is 0. Shapes:
/// x [n, k]; addend, out [n, n]; options.count of each, one after the other without gaps. out is none of the others and
/// exactly symmetric where the own kernel runs: with n a multiple of 128 and k of 64. Elsewhere this is a gemm().
void symmetric_gemm(Stream stream, const GemmOptions& options, Mat<const bf16> x, Mat<const bf16> addend,
                    Mat<bf16> out);

}  // namespace nanorun::kernels::cuda
