#pragma once
// What the ranks of a layout own, for plans of many ranks from one process.

#include <vector>

#include "src/comm/node_layout.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// The rows that a rank owns of each tensor, by bucket and in the order of the tensors; row_count is 0 where it owns
/// none.
using RankLoad = std::vector<std::vector<OwnedRows>>;

RankLoad load_of(const ParameterTable& table, const NodeLayout& layout, int rank);

/// The loads of all ranks, one of those that need the same memory and work: of ranks that own as many rows of the same
/// tensors, and of the tensors of Group::matrix the same matrices. Of thousands of ranks a few hundred differ.
std::vector<RankLoad> distinct_loads(const ParameterTable& table, const NodeLayout& layout);

}  // namespace nanorun
