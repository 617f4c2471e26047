#pragma once
// Which tensors an [[average]] of the deck covers. A tensor of several matrices may be covered in part: the matrices of
// block.N.qkv are block.N.qkv.q, block.N.qkv.k and block.N.qkv.v.

#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// A rank's rows of a tensor, or of one of its matrices.
struct AveragedRows {
  std::string name;   ///< of the tensor or the matrix
  OwnedRows rows;     ///< of its own rows
  std::size_t first;  ///< its first element among the rank's elements of the tensor
};

/// What an average covers of the tensor: the whole, or some of its matrices; nothing of tensors that are not trained.
/// As many for each rank, also where it owns no rows. LM head and embedding, if they are one parameter in all steps
/// (model.tied_head), both go by the name of the LM head.
std::vector<AveragedRows> averaged_rows(const Config& config, const AverageConfig& average, const OwnedRows& tensor);

/// The same of a whole tensor.
std::vector<AveragedRows> averaged_rows(const Config& config, const AverageConfig& average, const Parameter& tensor);

/// Dataset of checkpoints for what row number `row` of [[average]] keeps of a tensor.
std::string average_dataset(std::size_t row, const std::string& name);

/// One line for each pattern of an [[average]] that covers nothing.
std::vector<std::string> average_warnings(const Config& config, const ParameterTable& table);

}  // namespace nanorun
