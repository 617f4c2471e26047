#pragma once
// The bodies of CUDA attention, of which attention.cu calls the one for the device. Arguments as in attention.hpp, and
// checked. The backward pass leaves <d_y, y> of each query and head in delta [H, T], or [H/2, 2 T] of paired heads, and
// multiplies d_v by *value_factor unless that is null.

#include "kernels/attention/attention.hpp"

namespace nanorun::kernels::cuda {

/// Queries of a step of the backward direction, which has a counter in each head: see Counters.
inline constexpr int attention_step = attention_block / 2;

}  // namespace nanorun::kernels::cuda

namespace nanorun::kernels {

NANORUN_DECLARE_BODIES({
  void attention_forward(Stream stream, Mat<bf16> y, Mat<float> lse, const AttentionInputs<bf16>& in,
                         const AttentionMask& mask);
  void attention_backward(Stream stream, Mat<float> d_q, Mat<bf16> d_k, Mat<bf16> d_v, Mat<const bf16> y,
                          Mat<const float> lse, Mat<const bf16> d_y, const AttentionInputs<bf16>& in,
                          const AttentionMask& mask, float* delta, const float* value_factor);
})

}  // namespace nanorun::kernels
