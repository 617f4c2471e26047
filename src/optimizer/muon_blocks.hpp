#pragma once
// The blocks of matrices that Muon orthogonalises, and the shape of NorMuon's second moment, which has one number for
// each row of a block, or for each column where these are more (kernels/optimizer/muon.hpp).

#include <vector>

#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

/// `count` consecutive blocks [rows, cols] with the same hyperparameters.
struct MuonBlocks {
  int count = 0, rows = 0, cols = 0;
  Hyperparameters hyper;

  /// Numbers of NorMuon's second moment.
  std::size_t second_moment_size() const;
};

/// The blocks of the matrices that a rank owns, in the order of their elements; learned scalars are one block each.
std::vector<MuonBlocks> blocks_of(const Config& config, const std::vector<OwnedRows>& tensors);

/// Rows per block of matrix number `matrix` of a tensor: all its rows, or for W_q and W_k the rows of
/// optimizer.muon_block_heads heads.
int muon_block_rows(const Config& config, const Parameter& parameter, int matrix);

/// Whether a rank's rows of a bucket are of learned scalars, which have no blocks (kernels/optimizer/muon_scalars.hpp).
bool are_scalars(const std::vector<OwnedRows>& tensors);

/// NorMuon's second moment of a tensor has one row per block, of learned scalars one row in all. Returns its rows for
/// the owned rows of the tensor.
OwnedRows second_moment_rows(const Config& config, const OwnedRows& rows);

}  // namespace nanorun
