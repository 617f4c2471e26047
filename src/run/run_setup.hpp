#pragma once
// The start of a run, from the deck to the first step: whatever could keep the run from training is found out before
// anything changes that an earlier run has left.

#include <memory>

#include "src/comm/context.hpp"
#include "src/config/config.hpp"
#include "src/data/run_data.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/trace.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/learner.hpp"
#include "src/run/provenance.hpp"
#include "src/run/report.hpp"
#include "src/run/run_directory.hpp"
#include "src/run/stop.hpp"

namespace nanorun {

/// What the steps of a run work with.
struct RunSetup {
  /// Collective. Opens the shards, locks the run's directory, takes the memory, and restores a checkpoint where the
  /// deck and the directory say so. Unless the run is then complete, checks all else and takes the directory over.
  /// Throws Error.
  RunSetup(Context& context, const Config& config);

  /// Beginning, ranks, data and provenance of the run; the rest is for its steps to fill in.
  RunSummary summary() const;

  /// For rank 0. RunDirectory::keep(), and writes the deck into a directory that is new.
  void keep_directory();

  Context& context;
  Comm& comm;
  const Config& config;
  RunData data;
  RunDirectory directory;
  Provenance provenance;  ///< of rank 0
  Log log;
  Metrics metrics;
  Learner<Real> learner;
  Checkpoints checkpoints;
  StopMonitor stop;
  Progress progress;              ///< before the first step
  double checkpoint_seconds = 0;  ///< that a checkpoint will take here; known where stop.walltime_seconds is set
  bool continues_here = false;    ///< the run goes on in the directory of its checkpoint
  bool complete = false;          ///< an earlier run has done all that this one would do
  std::unique_ptr<Trace> trace;   ///< with loader: nothing where the run is complete
  std::unique_ptr<Loader> loader;

 private:
  void introduce();
  void restore();
  void warm_up();
  void examine_earlier(const std::optional<Progress>& found);
  void go_on_from(const Progress& found);
  void begin_with(const std::string& file);
  void check_data();
  void compare_tokens(const CheckpointHeader& header, const std::string& file);
  void check_outputs();
  void take_over_directory();
  void write_deck();

  TokenizerRecord trained_before;  ///< of the checkpoint whose weights the run has, where it fits the shards
};

}  // namespace nanorun
