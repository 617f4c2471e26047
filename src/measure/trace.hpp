#pragma once
// Time by phase: a Region measures a phase of the current step on this rank's compute stream, a Transfer a collective
// or a copy to the device on a stream of its own; the rows go to trace.h5, chosen steps to trace.json (Chrome trace
// format, opens in Perfetto), and the run's sums to the timing table and summary.json. Times are those of the streams:
// on devices the host only enqueues marks, and reads them once the step is over.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/device/types.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/measure/nvml.hpp"

namespace nanorun {

/// Phases of a step. Top-level phases add up to the step; each time belongs to exactly one phase (the innermost).
enum class Phase {
  data,  ///< waiting for tokens, preparing them for the device, and, as a transfer, copying them to it
  forward,
  head,
  backward,
  reduce_gradients,
  muon,
  adam,
  gather_weights,
  sync,  ///< the small reduction that carries loss and stop flags
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

  /// Collective. `stream`: that of the regions. `directory`: outputs/<name>, which exists. A run from step 0 starts a
  /// new trace.h5; a resumed one keeps the rows of steps < first_step and the validations of steps <= first_step, and
  /// moves a trace.h5 that cannot be read out of the way. With config.enabled = false no file is written; the sums of
  /// summarise() are always kept. Throws Error(output) where trace.h5 cannot be made. Where it can no longer be written
  /// later, for example on a full disk, a warning says so and the trace ends, not the run. While another program holds
  /// it, rows wait. `provenance`: JSON of rank 0, at most 60,000 bytes, for trace.h5.
  Trace(Comm& comm, kernels::Stream stream, const TraceConfig& config, const std::string& directory, long first_step,
        const std::string& provenance = {});
  ~Trace();

  /// Regions begin and end within one step, or outside of steps; then they count for the sums alone. A transfer counts
  /// for the step at whose end it is found done, which may be the one after that of its begin.
  void begin_step(long step);
  /// Collective. Waits for the regions of the step where they have not passed. tokens: of the step, over all ranks.
  /// loss: mean over those tokens.
  void end_step(double tokens, double loss);
  /// loss: mean over the validation tokens with the weights that `step` begins with. Replaces what earlier calls
  /// recorded for this step and later ones.
  void add_validation(long step, double loss);
  /// States of the GPUs of all ranks during `step`. For rank 0.
  void add_gpus(long step, std::span<const GpuState> states);
  /// Collective: writes the rows gathered since the last write. Called by end_step every flush_every steps.
  void flush();
  /// Collective, outside of regions: flushes, and writes trace.json if any of the chosen steps ran.
  void finish();

  struct Summary {
    Row min, avg, max;         ///< over ranks, of the seconds summed over this program run
    double communication = 0;  ///< mean over ranks of the seconds of transfers of gradients and weights; 0 without any
    double hidden = 0;         ///< share of `communication` that the compute stream did not wait for
  };
  /// Collective, outside of regions.
  Summary summarise();

 private:
  friend class Region;
  friend class Transfer;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A trace that writes nothing, for passes over a model outside of a run. `stream`: that of the regions.
Trace untraced(Comm& comm, kernels::Stream stream = {});

/// The timing table: phase, min, avg, max over ranks, % of the total of the averages; then the communication, if there
/// were transfers. Phases that took no time are left out.
std::string timing_table(const Trace::Summary& summary);

/// Measures what is enqueued on the trace's stream from construction to destruction, and names it for profilers.
/// Regions nest, an inner region's time does not count for the outer.
class Region {
 public:
  Region(Trace& trace, Phase phase);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  Trace::Impl& trace_;
  Phase phase_;
  int outer_;
  std::size_t begin_;
};

/// Measures what is enqueued on `stream` from construction to destruction: with Phase::data a copy to the device, on
/// the stream of those, else a collective, on theirs. Transfers do not nest, and those of one stream run one after
/// another. A region of a collective's phase is the time for which the compute stream waits for it. Copies count for
/// trace.json alone and are measured in its steps only.
class Transfer {
 public:
  Transfer(Trace& trace, Phase phase, kernels::Stream stream);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  Trace::Impl& trace_;
  Phase phase_;
  kernels::Stream stream_;
};

}  // namespace nanorun
