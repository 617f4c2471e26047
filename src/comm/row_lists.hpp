#pragma once
// Which rows of tables travel between the ranks, found from the rows that have gradients on each rank: two all-gathers
// of bits, one inside the node and one on each rail.

#include <cstdint>
#include <span>
#include <vector>

#include "src/comm/node_comms.hpp"
#include "src/comm/row_set.hpp"

namespace nanorun {

/// The lists of a RowExchange (src/comm/tensor_comm.hpp) in host memory.
struct RowLists {
  using Rows = std::vector<std::int32_t>;
  struct Node {
    std::vector<Rows> to, from;
    std::size_t longest = 0;
  };
  struct Rail {
    Rows out, in;
  };
  std::vector<Node> node;
  std::vector<std::vector<Rail>> rails;
};

/// Collective. `own`: by table the rows that have gradients on this rank. `first_rows`: by table the boundaries of all
/// parts, in rows.
std::vector<RowLists> exchange_rows(const NodeComms& comms, std::span<const RowSet> own,
                                    std::span<const Bounds> first_rows);

}  // namespace nanorun
