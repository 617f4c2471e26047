#include "src/measure/trace_columns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nanorun {

namespace {

using Quantities = std::array<double, quantities>;

constexpr int at(Phase phase) { return static_cast<int>(phase); }

using Phases = std::span<const double, Trace::phases>;

// Rounding may leave less than zero.

double step_seconds(Phases phases) {
  const double all = std::accumulate(phases.begin(), phases.end(), 0.0);
  return std::max(0.0, all - phases[at(Phase::validation)] - phases[at(Phase::checkpoint)]);
}

double computing_seconds(Phases phases) {
  return std::max(0.0, work_seconds(phases) - phases[at(Phase::muon)] - phases[at(Phase::adam)]);
}

/// The quantities of a rank in a step. `measured`: its measured_numbers.
Quantities quantities_of(const double* measured) {
  const Phases phases(measured, Trace::phases);
  Quantities all{};
  std::copy_n(measured, measured_numbers, all.begin());
  all[measured_numbers] = step_seconds(phases);
  all[measured_numbers + 1] = work_seconds(phases);
  all[measured_numbers + 2] = computing_seconds(phases);
  return all;
}

/// `values` ascend.
double quantile(const std::vector<double>& values, double share) {
  const double place = share * static_cast<double>(values.size() - 1), below = std::floor(place);
  const auto i = static_cast<std::size_t>(below);
  if (i + 1 == values.size()) return values[i];
  return std::lerp(values[i], values[i + 1], place - below);
}

}  // namespace

std::string quantity_names() {
  std::string names;
  for (int phase = 0; phase < Trace::phases; ++phase)
    names += fmt::format("{},", phase_name(static_cast<Phase>(phase)));
  return names + "communication,communication_between,step,work,computing";
}

double work_seconds(std::span<const double, Trace::phases> phases) {
  const double waiting =
      phases[at(Phase::reduce_gradients)] + phases[at(Phase::gather_weights)] + phases[at(Phase::sync)];
  return std::max(0.0, step_seconds(phases) - waiting);
}

TraceColumns::TraceColumns(TraceRanks choice, const NodeLayout& layout)
    : grouped_(choice == TraceRanks::quantiles ||
               (choice == TraceRanks::automatic && layout.ranks() > most_single_ranks)) {
  const int groups = std::min(layout.nodes(), most_groups);
  ranks_of_.resize(grouped_ ? groups : layout.ranks());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const int column = grouped_ ? layout.node_of(rank) * groups / layout.nodes() : rank;
    column_of_.push_back(column);
    ranks_of_[column].push_back(rank);
  }
}

void TraceColumns::add_row(TraceRows& rows, std::span<const double* const> numbers) const {
  for (int column = 0; column < count(); ++column) {
    const double* next = numbers[column];
    rows.seconds.insert(rows.seconds.end(), next, next + Trace::phases);
    rows.communication.push_back(next[Trace::phases]);
    rows.communication_between.push_back(next[Trace::phases + 1]);
    if (!grouped_) continue;
    next += measured_numbers;
    rows.group_ranks.push_back(static_cast<std::int32_t>(ranks_of(column).size()));
    for (std::size_t i = 0; i < quantities * quantile_count; ++i) rows.quantiles.push_back(static_cast<float>(*next++));
    for (std::size_t i = 0; i < quantities; ++i) rows.slowest.push_back(static_cast<std::int32_t>(*next++));
  }
}

std::vector<GpuState> TraceColumns::of_columns(std::span<const GpuState> states) const {
  std::vector<GpuState> columns(ranks_of_.size());
  for (std::size_t column = 0; column < columns.size(); ++column) {
    GpuState& all = columns[column];
    int known = 0;
    for (const int rank : ranks_of_[column]) {
      const GpuState& state = states[rank];
      all.reasons |= state.reasons;
      if (state.clock > 0) all.clock = all.clock > 0 ? std::min(all.clock, state.clock) : state.clock;
      if (state.power > 0) known += 1;
      all.power += state.power;
    }
    if (known > 0) all.power /= known;
  }
  return columns;
}

std::array<double, group_numbers> summarise_group(std::span<const double* const> measured, std::span<const int> ranks) {
  constexpr std::array<double, quantile_count> shares = {0, 0.25, 0.5, 0.75, 1};
  std::array<double, group_numbers> numbers{};
  std::vector<Quantities> by_rank;
  for (const double* rank : measured) by_rank.push_back(quantities_of(rank));
  double* const quantiles = numbers.data() + measured_numbers;
  double* const slowest = quantiles + quantities * quantile_count;
  std::vector<double> values(by_rank.size());
  for (std::size_t q = 0; q < quantities; ++q) {
    std::ranges::transform(by_rank, values.begin(), [q](const Quantities& rank) { return rank[q]; });
    if (q < measured_numbers) {
      numbers[q] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    }
    slowest[q] = ranks[std::ranges::max_element(values) - values.begin()];
    std::ranges::sort(values);
    for (std::size_t i = 0; i < quantile_count; ++i) quantiles[q * quantile_count + i] = quantile(values, shares[i]);
  }
  return numbers;
}

}  // namespace nanorun
