#pragma once
// At which steps a tensor is updated, with the sum of the gradients since the update before.

#include <algorithm>
#include <limits>

namespace nanorun {

/// Every `period` steps, and from step `late_from` on every `late_period`.
struct UpdateSteps {
  long period = 1, late_period = 1;
  long late_from = std::numeric_limits<long>::max();  ///< at or behind the end of the run: there is one period
  bool operator==(const UpdateSteps&) const = default;

  bool late(long step) const { return step >= late_from; }
  /// Whether there are two periods.
  bool changes() const { return late_period != period; }
  /// Whether an update follows at the end of a step.
  bool updates_at(long step) const { return (step + 1) % (late(step) ? late_period : period) == 0; }
  /// Updates at the ends of the first `steps` steps.
  long before(long steps) const {
    const long early = std::min(steps, late_from);
    return early / period + (steps > early ? steps / late_period - early / late_period : 0);
  }
  /// The first step at whose end an update follows.
  long first() const { return late(period - 1) ? (late_from / late_period + 1) * late_period - 1 : period - 1; }
  /// Updates for each step of a run of `steps` steps.
  double per_step(long steps) const {
    return late_from < steps ? static_cast<double>(before(steps)) / static_cast<double>(steps)
                             : 1.0 / static_cast<double>(period);
  }
};

}  // namespace nanorun
