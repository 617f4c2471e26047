#include "src/data/step_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/base/error.hpp"

namespace nanorun {

StepPlan::StepPlan(StepShape shape, Packing packing) : packing_(packing) { change(0, shape); }

void StepPlan::change(long first, StepShape shape) {
  if (shape.sequences < 1 || shape.length < 1 || shape.longest_document < 0 ||
      (parts_.empty() ? first != 0 : first <= parts_.back().first)) {
    throw Error(ExitCode::internal, fmt::format("steps from {} on cannot have {} sequences of {} tokens", first,
                                                shape.sequences, shape.length));
  }
  parts_.push_back({first, shape});
}

std::size_t StepPlan::part_at(long step) const {
  const auto next = std::ranges::upper_bound(parts_, step, {}, &Part::first);
  return next == parts_.begin() ? 0 : next - parts_.begin() - 1;
}

std::vector<std::uint64_t> StepPlan::least_tokens() const {
  // Packed sequences share no token.
  const std::uint64_t targets = packing_ == Packing::documents ? 1 : 0;
  std::vector<std::uint64_t> tokens;
  for (const auto& [first, shape] : parts_) tokens.push_back(std::uint64_t(shape.sequences) * (shape.length + targets));
  return tokens;
}

std::uint64_t StepPlan::steps_in(std::uint64_t tokens, long step, std::span<const std::uint64_t> taken) const {
  std::uint64_t steps = 0, left = tokens - std::min(tokens, tokens_behind());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const long end = i + 1 < parts_.size() ? parts_[i + 1].first : std::numeric_limits<long>::max();
    if (step >= end) continue;
    const std::uint64_t fitting = std::min(left / taken[i], static_cast<std::uint64_t>(end - step));
    steps += fitting;
    step += static_cast<long>(fitting);
    left -= fitting * taken[i];
    if (step < end) break;
  }
  return steps;
}

}  // namespace nanorun
