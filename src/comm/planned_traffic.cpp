#include "src/comm/planned_traffic.hpp"

#include <algorithm>
#include <cmath>

#include "src/comm/circulant.hpp"
#include "src/comm/rail_collectives.hpp"
#include "src/comm/transport.hpp"

namespace nanorun {

namespace {

using Gradient = kernels::acc_t<Real>;

}  // namespace

PlannedTraffic::PlannedTraffic(const NodeLayout& layout, int rank, const CommConfig& config)
    : layout_(layout), node_(layout.node_of(rank)), place_(layout.place_of(rank)), rails_(layout.seats_of(rank)) {
  const kernels::Wire wire{config.gradients, config.gradient_scale};
  const int on_node = layout.ranks_on(node_);
  if (on_node > 1) {
    inside_ = {kernels::wire_bytes<Gradient>(wire.format),
               Transport::slot_bytes(Transport::incoming_bytes, Transport::peers_in_node(on_node, config.transport))};
  }
  between_ = {kernels::wire_bytes<Gradient>(rail_wire(wire).format),
              Transport::slot_bytes(Transport::rail_incoming_bytes, 1)};
}

Traffic PlannedTraffic::Slots::carry(std::size_t elements, std::size_t together) const {
  const std::size_t chunk = bytes / (element * together) * together;
  return {(elements + chunk - 1) / chunk, elements * element};
}

LevelTraffic PlannedTraffic::reduce_scatter(const Bounds& parts) const {
  LevelTraffic sent;
  for (int round = 0; layout_.ranks_on(node_) > 1 && round < layout_.seat_rounds(node_); ++round) {
    const Bounds shares = layout_.shares(parts, node_, round);
    for (int place = 0; place < layout_.ranks_on(node_); ++place) {
      if (place != place_) sent.inside += inside_.carry(shares[place + 1] - shares[place]);
    }
  }
  for (const int rail : rails_) {
    const Bounds of_rail = layout_.parts_of_rail(parts, rail);
    for (const auto& [skip, blocks] : circulant_rounds(layout_.nodes()))
      sent.between += between_.carry(arc_of(of_rail, node_ + skip, blocks).size());
  }
  return sent;
}

LevelTraffic PlannedTraffic::reduce_scatter_rows(const RowLists& lists, std::size_t cols) const {
  LevelTraffic sent;
  for (const RowLists::Node& round : lists.node) {
    for (const RowLists::Rows& rows : round.to) {
      if (!rows.empty()) sent.inside += inside_.carry(rows.size() * cols, cols);
    }
  }
  for (const std::vector<RowLists::Rail>& rail : lists.rails) {
    for (const RowLists::Rail& round : rail) sent.between += between_.carry(round.out.size() * cols, cols);
  }
  return sent;
}

LevelTraffic PlannedTraffic::reduce_scatter_rows(const Bounds& first_rows, double touched, std::size_t cols) const {
  LevelTraffic sent;
  const auto all = static_cast<double>(first_rows.back());
  const auto rows_of = [&](std::size_t rows, double ranks) {
    return static_cast<std::size_t>(std::ceil(static_cast<double>(rows) * std::min(1.0, ranks * touched / all)));
  };
  const int on_node = layout_.ranks_on(node_);
  for (int round = 0; on_node > 1 && round < layout_.seat_rounds(node_); ++round) {
    const Bounds shares = layout_.shares(first_rows, node_, round);
    for (int place = 0; place < on_node; ++place) {
      if (place != place_) sent.inside += inside_.carry(rows_of(shares[place + 1] - shares[place], 1) * cols, cols);
    }
  }
  for (const int rail : rails_) {
    const Bounds of_rail = layout_.parts_of_rail(first_rows, rail);
    double ranks = on_node;  // most ranks whose gradients a partial sum has
    for (const auto& [skip, blocks] : circulant_rounds(layout_.nodes())) {
      sent.between += between_.carry(rows_of(arc_of(of_rail, node_ + skip, blocks).size(), ranks) * cols, cols);
      ranks *= 2;
    }
  }
  return sent;
}

LevelTraffic PlannedTraffic::all_gather(const Bounds& parts, std::size_t element) const {
  LevelTraffic sent;
  for (const int rail : rails_) {
    const Bounds of_rail = layout_.parts_of_rail(parts, rail);
    for (const auto& [skip, blocks] : circulant_rounds(layout_.nodes())) {
      const Arc out = arc_of(of_rail, node_, blocks);
      for (const Arc::Run& run : {out.first, out.second}) {
        if (run.size > 0) sent.between += {1, run.size * element};
      }
    }
  }
  const std::size_t others = layout_.ranks_on(node_) - 1;
  for (int round = 0; round < layout_.seat_rounds(node_); ++round) {
    const Bounds shares = layout_.shares(parts, node_, round);
    const std::size_t own = shares[place_ + 1] - shares[place_];
    if (own > 0) sent.inside += {others, others * own * element};
  }
  return sent;
}

}  // namespace nanorun
