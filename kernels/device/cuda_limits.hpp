#pragma once
// Limits of the CUDA implementations on the sizes of a model. The portable implementations have none. Ops throw
// std::invalid_argument beyond their limits; the check of the deck reads the same constants.

#include <cstdint>

namespace nanorun::kernels::cuda {

/// Most elements of a row of the stream, and of every tensor that has its width.
inline constexpr int max_row = 4096;
/// Rows of the stream and of lookup tables have a multiple of this many elements.
inline constexpr int row_vector = 8;
/// Widths of an attention head.
inline constexpr int attention_head_dims[] = {64, 128};
/// Width of a head that is composed, whose keys are offset, or whose Q and K are narrower.
inline constexpr int wide_head_dim = 128;
/// Where Q and K are narrower than a head, their width is a multiple of this.
inline constexpr int qk_unit = 16;
/// Largest product of heads and tokens of a sequence in the backward pass of attention.
inline constexpr std::int64_t max_attention_rows = std::int64_t{1} << 24;
/// Most keys of a composed head.
inline constexpr int max_composition_window = 112;
/// Most columns of the logits.
inline constexpr int max_vocabulary = 113000;

/// Every side of a product of 8-bit operands under [fp8.<product>] is a multiple of it.
inline constexpr int fp8_width = 128;

}  // namespace nanorun::kernels::cuda
