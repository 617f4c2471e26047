#pragma once
// How the ranks lie on nodes, and in which order they own parts of what they share.
//
// A rank's place is its number among the ranks of its node. Ranks of one place on all nodes form a rail: between nodes
// a rank talks to ranks of its own rail alone. A node with fewer ranks than others has as many seats as the fullest
// one: seat s is taken by the rank of place s modulo the node's ranks, which so takes part in several rails.
//
// Parts are ordered by place, then by node. So the parts of a rail are consecutive, as its share, and in it the parts
// of the nodes.

#include <cstddef>
#include <vector>

namespace nanorun {

/// Boundaries of the parts of a span: part p is [bounds[p], bounds[p+1]).
using Bounds = std::vector<std::size_t>;

class NodeLayout {
 public:
  /// A single rank.
  NodeLayout() : NodeLayout(std::vector<int>{0}) {}
  /// `node_of_rank`: a number for each rank, the same for ranks of one node. Nodes are numbered anew in the order of
  /// their lowest ranks.
  explicit NodeLayout(const std::vector<int>& node_of_rank);
  /// Consecutive ranks share a node; the last node may have fewer. `ranks_per_node` 0: all are on one node.
  static NodeLayout consecutive(int ranks, int ranks_per_node);

  int ranks() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(ranks_on_.size()); }
  /// Seats of each node, which are the rails: ranks of the fullest node.
  int seats() const { return static_cast<int>(first_part_.size()) - 1; }
  int node_of(int rank) const { return node_of_[rank]; }
  int place_of(int rank) const { return place_of_[rank]; }
  /// Number of ranks on a node, which are on the first places.
  int ranks_on(int node) const { return static_cast<int>(ranks_on_[node].size()); }
  /// The rank on a place of a node.
  int rank_at(int node, int place) const { return ranks_on_[node][place]; }
  /// The rank on a seat of a node.
  int rank_on_seat(int node, int seat) const { return rank_at(node, seat % ranks_on(node)); }
  /// Number of a rank where ranks are counted node by node.
  int turn_of(int rank) const { return turn_of_[rank]; }
  /// Seats of a rank, ascending: its place, and more on a node with fewer ranks than others.
  std::vector<int> seats_of(int rank) const;
  /// The part of a rank, and the rank of a part. On one node both numbers are equal.
  int part_of(int rank) const { return part_of_[rank]; }
  int rank_of_part(int part) const { return rank_of_part_[part]; }
  /// The share of a rail: parts [first_part(rail), first_part(rail + 1)).
  int first_part(int rail) const { return first_part_[rail]; }
  /// Parts [first_parts(rail)[node], first_parts(rail)[node + 1]) of the share of a rail are those of a node: one, or
  /// none where the node has no such place.
  const std::vector<int>& first_parts(int rail) const { return first_parts_[rail]; }

  /// Number of times that the ranks of a node go through its seats: 1 where no node has more ranks.
  int seat_rounds(int node) const;
  /// The shares of the rails whose seats the ranks of a node take in a round, by place. `parts`: of all ranks.
  Bounds shares(const Bounds& parts, int node, int round) const;
  /// The parts of the nodes in the share of a rail.
  Bounds parts_of_rail(const Bounds& parts, int rail) const;

 private:
  std::vector<int> node_of_, place_of_, turn_of_, part_of_;  ///< by rank
  std::vector<std::vector<int>> ranks_on_;                   ///< by node and place
  std::vector<int> rank_of_part_, first_part_;
  std::vector<std::vector<int>> first_parts_;
};

}  // namespace nanorun
