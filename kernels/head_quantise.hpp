#pragma once
// Operands of the fp8 head on CUDA.

#include "kernels/types.hpp"

namespace nanorun::kernels::cuda {

/// q = e4m3(scale x), saturating, a NaN staying one; q_t = qᵀ unless null. x, q [rows, cols], q_t [cols, rows]; rows,
/// cols and the strides of q and q_t are multiples of 16, rows of x begin at whole 16-byte vectors.
void quantise_e4m3(Stream stream, Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, double scale);

}  // namespace nanorun::kernels::cuda
