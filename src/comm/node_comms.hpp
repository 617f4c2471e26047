#pragma once
// The communicators of the two levels: the ranks of a node, and the rails, on which nodes talk to each other.

#include <memory>
#include <span>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/comm/node_layout.hpp"

namespace nanorun {

/// Collective. `ranks_per_node`: as NodeLayout::consecutive() takes it; 0: ranks that share memory are on one node.
NodeLayout find_layout(Comm& comm, int ranks_per_node);

class NodeComms {
 public:
  /// A rail in which this rank takes part: its rank 0 is on node 0, and so on.
  struct Rail {
    int number;
    std::unique_ptr<Comm> comm;
  };

  /// Collective. `ranks_per_node`: as find_layout() takes it. The communicator outlives it.
  NodeComms(Comm& comm, int ranks_per_node);

  const NodeLayout& layout() const { return layout_; }
  Comm& all() const { return all_; }
  /// The ranks of this rank's node by their places; all() where there is one node.
  Comm& node() const { return node_ ? *node_ : all_; }
  /// Ascending; none where there is one node.
  std::span<const Rail> rails() const { return rails_; }

  /// NodeLayout's of this rank's node.
  int seat_rounds() const { return layout_.seat_rounds(layout_.node_of(all_.rank())); }
  Bounds shares(const Bounds& parts, int round) const {
    return layout_.shares(parts, layout_.node_of(all_.rank()), round);
  }
  Bounds parts_of_rail(const Bounds& parts, int rail) const { return layout_.parts_of_rail(parts, rail); }

 private:
  Comm& all_;
  NodeLayout layout_;
  std::unique_ptr<Comm> node_;
  std::vector<Rail> rails_;
};

}  // namespace nanorun
