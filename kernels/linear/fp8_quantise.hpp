#pragma once
// Quantisation of the operands of the LM head in fp8 on CUDA. fp8_linear.hpp has that of other layers.

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// q = e4m3(scale x), saturating; NaN stays NaN. q_t = qᵀ unless it is null.
/// Shapes: x, q [rows, cols]; q_t [cols, rows]. rows, cols and the strides of q and q_t are multiples of 16; rows of x
/// are aligned to 16 bytes, else std::invalid_argument.
void quantise_e4m3(Stream stream, Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, double scale);

}  // namespace nanorun::kernels::cuda
