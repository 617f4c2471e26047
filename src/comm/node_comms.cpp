#include "src/comm/node_comms.hpp"

#include <algorithm>

namespace nanorun {

NodeLayout find_layout(Comm& comm, int ranks_per_node) {
  return ranks_per_node > 0 ? NodeLayout::consecutive(comm.size(), ranks_per_node) : comm.nodes();
}

NodeComms::NodeComms(Comm& comm, int ranks_per_node) : all_(comm), layout_(find_layout(comm, ranks_per_node)) {
  if (layout_.nodes() == 1) return;
  const int node = layout_.node_of(comm.rank()), place = layout_.place_of(comm.rank());
  node_ = comm.split(node, comm.rank());
  // The rails in which each node has a rank of its own come from one split.
  int single = layout_.seats();
  for (int other = 0; other < layout_.nodes(); ++other) single = std::min(single, layout_.ranks_on(other));
  std::unique_ptr<Comm> first = comm.split(place < single ? place : -1, node);
  if (first) rails_.push_back({place, std::move(first)});
  const std::vector<int> own = layout_.seats_of(comm.rank());
  for (int rail = single; rail < layout_.seats(); ++rail) {
    const bool takes_part = std::ranges::find(own, rail) != own.end();
    std::unique_ptr<Comm> ranks = comm.split(takes_part ? 0 : -1, node);
    if (takes_part) rails_.push_back({rail, std::move(ranks)});
  }
}

}  // namespace nanorun
