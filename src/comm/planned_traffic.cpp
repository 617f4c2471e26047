#include "src/comm/planned_traffic.hpp"

#include <algorithm>

#include "src/comm/circulant.hpp"
#include "src/comm/gather_schedule.hpp"
#include "src/comm/rail_collectives.hpp"
#include "src/comm/transport.hpp"

namespace nanorun {

namespace {

using Gradient = kernels::acc_t<Real>;

kernels::Wire wire_of(const CommConfig& config) { return {config.gradients, config.gradient_scale}; }

}  // namespace

PlannedTraffic::PlannedTraffic(const NodeLayout& layout, const CommConfig& config) : layout_(layout), config_(config) {}

template <class A>
PlannedTraffic::Slots PlannedTraffic::between() const {
  return {kernels::wire_bytes<A>(rail_wire(wire_of(config_)).format),
          Transport::slot_bytes(Transport::rail_incoming_bytes, 1)};
}

/// Of a node with several ranks.
template <class A>
PlannedTraffic::Slots PlannedTraffic::inside(int node) const {
  const int peers = Transport::peers_in_node(layout_.ranks_on(node), config_.transport);
  return {kernels::wire_bytes<A>(config_.gradients), Transport::slot_bytes(Transport::incoming_bytes, peers)};
}

Traffic PlannedTraffic::Slots::carry(std::size_t elements, std::size_t together) const {
  const std::size_t chunk = bytes / (element * together) * together;
  return {(elements + chunk - 1) / chunk, elements * element};
}

/// Adds what each rank sends to the others of its node. share(slots, size): what one rank sends to the owner of a share
/// of so many elements.
template <class A, class Share>
void PlannedTraffic::add_inside(std::vector<LevelTraffic>& sent, const Bounds& parts, const Share& share) const {
  for (int node = 0; node < layout_.nodes(); ++node) {
    if (layout_.ranks_on(node) == 1) continue;
    const Slots slots = inside<A>(node);
    for (int round = 0; round < layout_.seat_rounds(node); ++round) {
      const Bounds shares = layout_.shares(parts, node, round);
      std::vector<Traffic> to;
      Traffic to_all;
      for (int place = 0; place < layout_.ranks_on(node); ++place)
        to_all += to.emplace_back(share(slots, shares[place + 1] - shares[place]));
      for (int place = 0; place < layout_.ranks_on(node); ++place)
        sent[layout_.rank_at(node, place)].inside += to_all - to[place];
    }
  }
}

/// Adds what each rank sends on its rails. on_rail(bounds) is for a rail in which the parts of the nodes have these
/// bounds; it returns a function that says what the rank of a node sends.
template <class OnRail>
void PlannedTraffic::add_between(std::vector<LevelTraffic>& sent, const Bounds& parts, const OnRail& on_rail) const {
  if (layout_.nodes() == 1) return;
  for (int rail = 0; rail < layout_.seats(); ++rail) {
    const auto sent_by = on_rail(layout_.parts_of_rail(parts, rail));
    for (int node = 0; node < layout_.nodes(); ++node) sent[layout_.rank_on_seat(node, rail)].between += sent_by(node);
  }
}

template <class A>
std::vector<LevelTraffic> PlannedTraffic::reduce_scatter(const Bounds& parts) const {
  std::vector<LevelTraffic> sent(layout_.ranks());
  const Slots between = this->between<A>();
  add_inside<A>(sent, parts, [](const Slots& slots, std::size_t size) { return slots.carry(size); });
  const std::vector<CirculantRound> rounds = circulant_rounds(layout_.nodes());
  add_between(sent, parts, [&](const Bounds& of_rail) {
    return [&, of_rail](int node) {
      Traffic traffic;
      for (const auto& [skip, blocks] : rounds) traffic += between.carry(arc_of(of_rail, node + skip, blocks).size());
      return traffic;
    };
  });
  return sent;
}

std::vector<LevelTraffic> PlannedTraffic::reduce_scatter_rows(const Bounds& first_rows, std::size_t touched,
                                                              std::size_t cols) const {
  std::vector<LevelTraffic> sent(layout_.ranks());
  const Slots between = this->between<Gradient>();
  add_inside<Gradient>(sent, first_rows, [&](const Slots& slots, std::size_t rows) {
    return slots.carry(std::min(rows, touched) * cols, cols);
  });
  const std::size_t own = touched * cols * kernels::wire_bytes<Gradient>(config_.gradients);
  for (LevelTraffic& rank : sent) rank.inside.bytes = std::min<std::uint64_t>(rank.inside.bytes, own);
  const std::vector<CirculantRound> rounds = circulant_rounds(layout_.nodes());
  add_between(sent, first_rows, [&](const Bounds& of_rail) {
    return [&, of_rail](int node) {
      Traffic traffic;
      std::size_t ranks = layout_.seats();  // most ranks whose gradients a partial sum has
      for (const auto& [skip, blocks] : rounds) {
        const std::size_t rows = std::min(arc_of(of_rail, node + skip, blocks).size(), ranks * touched);
        traffic += between.carry(rows * cols, cols);
        ranks *= 2;
      }
      return traffic;
    };
  });
  return sent;
}

std::vector<LevelTraffic> PlannedTraffic::all_gather(const Bounds& parts, std::size_t element) const {
  std::vector<LevelTraffic> sent(layout_.ranks());
  add_between(sent, parts, [&](const Bounds& of_rail) {
    return [element, schedule = GatherSchedule(of_rail)](int node) {
      Traffic traffic;
      for (const GatherRound& round : schedule.rounds_of(node)) {
        for (const Arc::Run& run : round.out) traffic += {1, run.size * element};
      }
      return traffic;
    };
  });
  for (int node = 0; node < layout_.nodes(); ++node) {
    const std::size_t others = layout_.ranks_on(node) - 1;
    for (int round = 0; round < layout_.seat_rounds(node); ++round) {
      const Bounds shares = layout_.shares(parts, node, round);
      for (int place = 0; place < layout_.ranks_on(node); ++place) {
        const std::size_t own = shares[place + 1] - shares[place];
        if (own > 0) sent[layout_.rank_at(node, place)].inside += {others, others * own * element};
      }
    }
  }
  return sent;
}

template std::vector<LevelTraffic> PlannedTraffic::reduce_scatter<Gradient>(const Bounds&) const;
#if NANORUN_CUDA
template std::vector<LevelTraffic> PlannedTraffic::reduce_scatter<Real>(const Bounds&) const;
#endif

LevelTraffic PlannedTraffic::reduce_scatter_rows(int rank, const RowLists& lists, std::size_t cols) const {
  LevelTraffic sent;
  const int node = layout_.node_of(rank);
  const Slots between = this->between<Gradient>();
  for (const RowLists::Node& round : lists.node) {
    for (const RowLists::Rows& rows : round.to) {
      if (!rows.empty()) sent.inside += inside<Gradient>(node).carry(rows.size() * cols, cols);
    }
  }
  for (const std::vector<RowLists::Rail>& rail : lists.rails) {
    for (const RowLists::Rail& round : rail) sent.between += between.carry(round.out.size() * cols, cols);
  }
  return sent;
}

}  // namespace nanorun
