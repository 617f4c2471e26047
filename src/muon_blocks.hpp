#pragma once
// The blocks of matrices that Muon orthogonalises, and the lines of blocks whose second moment NorMuon keeps.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config.hpp"
#include "src/params.hpp"

namespace nanorun {

/// The blocks of a rank's matrices, in the order of their elements, each batch of one shape. `data`, the first element,
/// may be null.
template <class A>
std::vector<kernels::MatrixBatch<A>> blocks_of(const Config& config, const std::vector<OwnedRows>& tensors, A* data);

/// Numbers of NorMuon's second moment: one for each line of each block.
template <class A>
std::size_t line_count(const std::vector<kernels::MatrixBatch<A>>& blocks);

/// Moves the batches that have the shape of the first, or its transpose, to `shape`.
template <class A>
void split_shape(std::vector<kernels::MatrixBatch<A>>& batches, std::vector<kernels::MatrixBatch<A>>& shape);

/// The rows that a rank owns of a tensor's second moment: one for each block, of a number for each line.
OwnedRows line_rows(const Config& config, const OwnedRows& rows);

}  // namespace nanorun
