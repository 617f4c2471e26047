#pragma once
// Time by phase. A Region measures a phase of the current step on this rank's compute stream. A Transfer measures a
// collective, or a copy to the device, on a stream of its own. Each step becomes a row of trace.h5; chosen steps go to
// trace.json (Chrome trace format, opens in Perfetto); the sums of the run go to the timing table and summary.json.
// Times are measured on the streams: on devices the host only enqueues events, and reads them once the step is over.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/device/types.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/node_layout.hpp"
#include "src/comm/traffic.hpp"
#include "src/config/config.hpp"
#include "src/measure/nvml.hpp"

namespace nanorun {

/// Phases of a step. Each moment belongs to exactly one phase, that of the innermost region, so the phases add up to
/// the step.
enum class Phase {
  data,  ///< waiting for tokens, preparing them for the device, and, as a transfer, copying them to it
  forward,
  head,
  backward,
  reduce_gradients,
  muon,
  adam,
  gather_weights,
  sync,  ///< the small reductions at the end of a step, of losses and reasons to stop
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

  /// Collective. `stream`: the compute stream. `layout`: of the ranks on nodes. `directory`: outputs/<name>, which
  /// exists. A run from step 0 starts a new trace.h5; a resumed one keeps the rows of steps < first_step and the
  /// validations of steps <= first_step, and moves a trace.h5 that cannot be read out of the way. With config.enabled =
  /// false no file is written; the sums of summarise() are always kept. Throws Error(output) where trace.h5 cannot be
  /// made. Where it can no longer be written later, for example on a full disk, a warning says so and the trace ends,
  /// not the run. While another program has it open, rows wait. `provenance`: JSON of rank 0, at most 60,000 bytes, for
  /// trace.h5.
  Trace(Comm& comm, kernels::Stream stream, const TraceConfig& config, const NodeLayout& layout,
        const std::string& directory, long first_step, const std::string& provenance = {});
  ~Trace();

  /// A region begins and ends within one step, or outside of steps; then it counts in summarise() alone. A transfer
  /// counts for the step at whose end it is found done, which may be the step after the one in which it began.
  void begin_step(long step);
  /// Collective. Waits until the step's regions have passed on the compute stream. tokens: of the step, over all ranks.
  /// loss: mean over those tokens.
  void end_step(double tokens, double loss);
  /// loss: mean over the validation tokens, with the weights before `step`. Replaces the validations of this step and
  /// later ones.
  void add_validation(long step, double loss);
  /// For rank 0. States of the GPUs of all ranks during `step`.
  void add_gpus(long step, std::span<const GpuState> states);
  /// Collective: writes the rows gathered since the last write. Called by end_step every flush_every steps.
  void flush();
  /// Collective, outside of regions: flushes, and writes trace.json if any of the chosen steps ran.
  void finish();

  struct Summary {
    Row min, avg, max;         ///< over the ranks: seconds of each phase in this program run
    double communication = 0;  ///< mean over the ranks of the seconds of transfers of gradients and weights
    double between = 0;        ///< the part of `communication` between nodes, seconds
    double hidden = 0;         ///< share of `communication` for which the compute stream did not wait
  };
  /// Collective, outside of regions.
  Summary summarise();

 private:
  friend class Region;
  friend class Transfer;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A trace that writes nothing, for passes over a model outside of a run. `stream`: the compute stream.
Trace untraced(Comm& comm, kernels::Stream stream = {});

/// The timing table: for each phase that took time the minimum, mean and maximum over the ranks, and the share of the
/// mean in % of all; then the communication, if there were transfers, and its part between nodes, if there was any.
std::string timing_table(const Trace::Summary& summary);

/// Measures what is enqueued on the compute stream from construction to destruction, and names it for profilers, which
/// show it inside of its step.
/// Regions nest; the time of an inner region does not count for the outer one.
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

/// Measures what is enqueued on `stream` from construction to destruction: with Phase::data a copy on the stream of
/// copies to the device, with other phases a collective on the stream of collectives. Transfers do not nest. A Region
/// with the phase of a collective measures how long the compute stream waits for it. Copies appear only in trace.json,
/// and are measured only in the steps that it holds. `level`: where the tensors of a collective travel.
class Transfer {
 public:
  Transfer(Trace& trace, Phase phase, kernels::Stream stream, Level level = Level::inside);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  Trace::Impl& trace_;
  Phase phase_;
  kernels::Stream stream_;
  Level level_;
};

}  // namespace nanorun
