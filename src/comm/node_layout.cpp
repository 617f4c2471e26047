#include "src/comm/node_layout.hpp"

#include <algorithm>
#include <map>

namespace nanorun {

NodeLayout::NodeLayout(const std::vector<int>& node_of_rank)
    : turn_of_(node_of_rank.size()), part_of_(node_of_rank.size()) {
  std::map<int, int> numbers;
  for (int rank = 0; rank < static_cast<int>(node_of_rank.size()); ++rank) {
    const int node = numbers.emplace(node_of_rank[rank], static_cast<int>(numbers.size())).first->second;
    if (node == nodes()) ranks_on_.emplace_back();
    node_of_.push_back(node);
    place_of_.push_back(ranks_on(node));
    ranks_on_[node].push_back(rank);
  }
  int turn = 0;
  for (const std::vector<int>& on_node : ranks_on_) {
    for (const int rank : on_node) turn_of_[rank] = turn++;
  }
  first_part_ = {0};
  const auto fullest = std::ranges::max(ranks_on_, {}, [](const std::vector<int>& on_node) { return on_node.size(); });
  const auto parts = [&] { return static_cast<int>(rank_of_part_.size()); };
  for (int place = 0; place < static_cast<int>(fullest.size()); ++place) {
    std::vector<int>& of_nodes = first_parts_.emplace_back(std::vector<int>{parts()});
    for (int node = 0; node < nodes(); ++node) {
      if (place < ranks_on(node)) {
        part_of_[rank_at(node, place)] = parts();
        rank_of_part_.push_back(rank_at(node, place));
      }
      of_nodes.push_back(parts());
    }
    first_part_.push_back(parts());
  }
}

NodeLayout NodeLayout::consecutive(int ranks, int ranks_per_node) {
  std::vector<int> node_of(ranks);
  for (int rank = 0; rank < ranks; ++rank) node_of[rank] = ranks_per_node == 0 ? 0 : rank / ranks_per_node;
  return NodeLayout(node_of);
}

std::vector<int> NodeLayout::seats_of(int rank) const {
  std::vector<int> seats;
  for (int seat = place_of(rank); seat < this->seats(); seat += ranks_on(node_of(rank))) seats.push_back(seat);
  return seats;
}

int NodeLayout::seat_rounds(int node) const { return (seats() + ranks_on(node) - 1) / ranks_on(node); }

Bounds NodeLayout::shares(const Bounds& parts, int node, int round) const {
  Bounds shares;
  for (int place = 0; place <= ranks_on(node); ++place) {
    shares.push_back(parts[first_part(std::min(round * ranks_on(node) + place, seats()))]);
  }
  return shares;
}

Bounds NodeLayout::parts_of_rail(const Bounds& parts, int rail) const {
  Bounds own;
  for (const int part : first_parts(rail)) own.push_back(parts[part]);
  return own;
}

}  // namespace nanorun
