#pragma once
// Weight gradient of the LM head in fp8 on CUDA.

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// d_w = factor gᵀ x, or d_w += factor gᵀ x with Output::accumulate. Sums over 128 rows have about 14 bits, and are
/// added up in fp32. Shapes: d_w [V, d]; g [rows, V]; x_t = xᵀ [d, rows]; none is empty. Throws std::invalid_argument
/// unless every row of each matrix begins at a multiple of 16 bytes.
void lm_head_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const e5m2> g,
                             Mat<const e4m3> x_t);

}  // namespace nanorun::kernels::cuda
