#include "src/comm/row_lists.hpp"

#include <algorithm>

#include "src/comm/circulant.hpp"

namespace nanorun {

namespace {

/// Rows [first, end).
struct RowRange {
  std::int64_t first, end;
};

RowRange range_of(const Bounds& bounds, int part) {
  return {static_cast<std::int64_t>(bounds[part]), static_cast<std::int64_t>(bounds[part + 1])};
}

/// Collective. The given rows of each table's set on all ranks: by table, then by rank.
std::vector<std::vector<RowSet>> gather_sets(Comm& comm, std::span<const RowSet> own,
                                             std::span<const RowRange> ranges) {
  std::vector<std::uint64_t> words;
  for (std::size_t t = 0; t < own.size(); ++t) {
    const std::span<const std::uint64_t> part = own[t].words(ranges[t].first, ranges[t].end);
    words.insert(words.end(), part.begin(), part.end());
  }
  const std::vector<std::uint64_t> all = comm.all_gather(std::span<const std::uint64_t>(words));
  std::vector<std::vector<RowSet>> sets(own.size());
  const std::uint64_t* next = all.data();
  for (int rank = 0; rank < comm.size(); ++rank) {
    for (std::size_t t = 0; t < own.size(); ++t) {
      const std::span<std::uint64_t> set = sets[t].emplace_back(ranges[t].first, ranges[t].end).words();
      std::copy_n(next, set.size(), set.begin());
      next += set.size();
    }
  }
  return sets;
}

/// `sets`: of the ranks of the node. `shares`: boundaries of their shares in this round.
RowLists::Node node_lists(std::span<const RowSet> sets, const Bounds& shares, int own) {
  RowLists::Node lists;
  lists.to.resize(sets.size());
  lists.from.resize(sets.size());
  for (int from = 0; from < std::ssize(sets); ++from) {
    for (int to = 0; to < std::ssize(sets); ++to) {
      if (from == to) continue;
      const auto [first, end] = range_of(shares, to);
      if (from == own) sets[from].list(first, end, lists.to[to]);
      if (to == own) sets[from].list(first, end, lists.from[from]);
      lists.longest = std::max(lists.longest, sets[from].count(first, end));
    }
  }
  return lists;
}

/// body(first, end) for the runs of an arc of rows.
template <class Body>
void for_each_run(const Arc& arc, const Body& body) {
  for (const Arc::Run& run : {arc.first, arc.second}) {
    body(static_cast<std::int64_t>(run.begin), static_cast<std::int64_t>(run.begin + run.size));
  }
}

/// Follows the sums of all nodes through the rounds of the reduce-scatter. `sets`: of the nodes, in this rail's share.
std::vector<RowLists::Rail> rail_lists(std::vector<RowSet> sets, const Bounds& parts, int own) {
  const int nodes = static_cast<int>(sets.size());
  std::vector<RowLists::Rail> lists;
  for (const auto& [skip, blocks] : circulant_rounds(nodes)) {
    RowLists::Rail& round = lists.emplace_back();
    const int before = (own - skip + nodes) % nodes;
    for_each_run(arc_of(parts, own + skip, blocks),
                 [&](std::int64_t first, std::int64_t end) { sets[own].list(first, end, round.out); });
    for_each_run(arc_of(parts, own, blocks),
                 [&](std::int64_t first, std::int64_t end) { sets[before].list(first, end, round.in); });
    for (int node = 0; node < nodes; ++node) {
      const RowSet& sender = sets[(node - skip + nodes) % nodes];
      for_each_run(arc_of(parts, node, blocks),
                   [&](std::int64_t first, std::int64_t end) { sets[node].add(sender, first, end); });
    }
  }
  return lists;
}

}  // namespace

std::vector<RowLists> exchange_rows(const NodeComms& comms, std::span<const RowSet> own,
                                    std::span<const Bounds> first_rows) {
  std::vector<RowLists> lists(own.size());
  std::vector<RowRange> whole;
  for (const Bounds& rows : first_rows) whole.push_back({0, static_cast<std::int64_t>(rows.back())});
  const std::vector<std::vector<RowSet>> of_node = gather_sets(comms.node(), own, whole);
  std::vector<RowSet> sum_of_node(own.begin(), own.end());
  for (std::size_t t = 0; t < own.size(); ++t) {
    for (int round = 0; round < comms.seat_rounds(); ++round) {
      lists[t].node.push_back(node_lists(of_node[t], comms.shares(first_rows[t], round), comms.node().rank()));
    }
    for (const RowSet& set : of_node[t]) sum_of_node[t].add(set, 0, whole[t].end);
  }
  for (const NodeComms::Rail& rail : comms.rails()) {
    std::vector<Bounds> parts;
    std::vector<RowRange> shares;
    for (const Bounds& rows : first_rows) {
      parts.push_back(comms.parts_of_rail(rows, rail.number));
      shares.push_back(
          {static_cast<std::int64_t>(parts.back().front()), static_cast<std::int64_t>(parts.back().back())});
    }
    std::vector<std::vector<RowSet>> of_rail = gather_sets(*rail.comm, sum_of_node, shares);
    for (std::size_t t = 0; t < own.size(); ++t) {
      lists[t].rails.push_back(rail_lists(std::move(of_rail[t]), parts[t], rail.comm->rank()));
    }
  }
  return lists;
}

}  // namespace nanorun
