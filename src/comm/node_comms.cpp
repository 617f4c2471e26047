#include "src/comm/node_comms.hpp"

#include <algorithm>

namespace nanorun {

NodeLayout find_layout(Comm& comm, int ranks_per_node) {
  return ranks_per_node > 0 ? NodeLayout::consecutive(comm.size(), ranks_per_node) : comm.nodes();
}

NodeComms::NodeComms(Comm& comm, int ranks_per_node) : all_(comm), layout_(find_layout(comm, ranks_per_node)) {
  if (layout_.nodes() == 1) return;
  const int node = layout_.node_of(comm.rank());
  node_ = comm.split(node, comm.rank());
  const std::vector<int> own = layout_.seats_of(comm.rank());
  for (int rail = 0; rail < layout_.seats(); ++rail) {
    const bool takes_part = std::ranges::find(own, rail) != own.end();
    std::unique_ptr<Comm> ranks = comm.split(takes_part ? 0 : -1, node);
    if (takes_part) rails_.push_back({rail, std::move(ranks)});
  }
}

}  // namespace nanorun
