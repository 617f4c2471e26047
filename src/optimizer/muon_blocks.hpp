#pragma once
// The blocks of matrices that Muon orthogonalises, and the lines of blocks whose second moment NorMuon keeps.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/update_rules.hpp"

namespace nanorun {

/// Consecutive blocks [rows, cols] of one shape and one rule.
struct MuonBlocks {
  int count = 0, rows = 0, cols = 0;
  UpdateRule rule;
};

/// The blocks of a rank's matrices, in the order of their elements.
std::vector<MuonBlocks> blocks_of(const Config& config, const std::vector<OwnedRows>& tensors);

/// Numbers of NorMuon's second moment: one for each line of each block.
std::size_t line_count(const MuonBlocks& blocks);
std::size_t line_count(const std::vector<MuonBlocks>& blocks);

/// Moves the batches that have the shape of the first, or its transpose, to `shape`.
template <class T>
void split_shape(std::vector<kernels::MuonBatch<T>>& batches, std::vector<kernels::MuonBatch<T>>& shape);

/// The rows that a rank owns of a tensor's second moment: one for each block, of a number for each line.
OwnedRows line_rows(const Config& config, const OwnedRows& rows);

}  // namespace nanorun
