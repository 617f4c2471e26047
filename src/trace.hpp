#pragma once
// Time by phase: a Region measures a phase of the current step on this rank; the rows go to trace.h5, chosen steps to
// trace.json (Chrome trace format, opens in Perfetto), and the run's sums to the timing table and summary.json.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm.hpp"
#include "src/config.hpp"

namespace nanorun {

/// Phases of a step. Top-level phases add up to the step; each time belongs to exactly one phase (the innermost).
enum class Phase {
  data,
  forward,
  head,
  backward,
  reduce_gradients,
  muon,
  adam,
  gather_weights,
  agree,  ///< the small reduction that carries loss and stop flags
  validation,
  checkpoint,
  output,
  other,
  count
};
const char* phase_name(Phase phase);

class Trace {
 public:
  static constexpr int phases = static_cast<int>(Phase::count);
  using Row = std::array<double, phases>;  ///< seconds

  /// `folder`: outputs/<name>. A resumed run appends to trace.h5 and drops rows of steps >= first_step.
  Trace(Comm& comm, const TraceConfig& config, const std::string& folder, long first_step);
  ~Trace();

  void begin_step(long step);
  void end_step(double tokens, double loss);
  void add_validation(long step, double loss);
  /// Collective: writes the rows gathered since the last write. Called by end_step every flush_every steps.
  void flush();
  /// Collective: flushes, and writes trace.json if any steps were chosen.
  void finish();

  struct Summary {
    Row min, avg, max;  ///< over ranks, of the seconds summed over the steps of this program run
  };
  /// Collective.
  Summary summarise();

 private:
  friend class Region;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The timing table: phase, min, avg, max over ranks, % of total.
std::string timing_table(const Trace::Summary& summary);

/// Measures from construction to destruction; regions nest, an inner region's time does not count for the outer.
class Region {
 public:
  Region(Trace& trace, Phase phase);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  Trace& trace_;
};

}  // namespace nanorun
