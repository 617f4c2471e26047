#pragma once
// What the CUDA implementations take of the sizes that a model can have. The portable ones take all. Ops throw
// std::invalid_argument beyond their limits; the check of the deck knows the same constants.

#include <cstdint>

namespace nanorun::kernels::cuda {

/// Elements of a row: of the stream, and of everything that has its width.
inline constexpr int max_row = 4096;
/// Rows of the stream and of lookup tables are whole vectors of so many elements.
inline constexpr int row_vector = 8;
/// Width of an attention head.
inline constexpr int attention_head_dim = 128;
/// Heads times tokens of a sequence in the backward pass of attention.
inline constexpr std::int64_t max_attention_rows = std::int64_t{1} << 24;
/// Keys of a composed head.
inline constexpr int max_composition_window = 112;
/// Columns of the logits.
inline constexpr int max_vocabulary = 113000;

}  // namespace nanorun::kernels::cuda
