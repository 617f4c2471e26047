#pragma once
// The start of a run, from the deck to the first step. It finds everything that could keep the run from training before
// it changes anything that an earlier run has left.

#include <memory>

#include "src/comm/context.hpp"
#include "src/config/config.hpp"
#include "src/data/run_data.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/trace.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/learner.hpp"
#include "src/run/log.hpp"
#include "src/run/progress.hpp"
#include "src/run/provenance.hpp"
#include "src/run/run_directory.hpp"
#include "src/run/stop.hpp"
#include "src/run/summary.hpp"

namespace nanorun {

/// What the steps of a run work with.
struct RunSetup {
  /// Collective. Opens the shards, locks the run's directory, allocates the memory, and restores a checkpoint if the
  /// deck and the directory say so. If the run is then not complete, checks everything else and takes the directory
  /// over. Throws Error.
  RunSetup(Context& context, const Config& config);

  /// The part of the summary that is known before the first step: ranks, data, provenance, first step.
  RunSummary summary() const;

  /// For rank 0. Calls RunDirectory::keep(), and writes the deck into the directory if it is a new one.
  void keep_directory();

  Context& context;
  Comm& comm;
  const Config& config;
  RunData data;
  RunDirectory directory;
  Provenance provenance;  ///< filled on rank 0 alone
  Log log;
  Metrics metrics;
  Learner<Real> learner;
  Checkpoints checkpoints;
  StopMonitor stop;
  Progress progress;               ///< progress before the first step
  double checkpoint_seconds = 0;   ///< expected time of a checkpoint, if stop.walltime_seconds is set
  bool continues_here = false;     ///< the run continues in the directory of its checkpoint
  bool complete = false;           ///< an earlier run has made all steps
  std::unique_ptr<Trace> trace;    ///< null where the run is complete
  std::unique_ptr<Loader> loader;  ///< null where the run is complete

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

  TokenizerRecord trained_before;  ///< tokenizer of the checkpoint whose weights the run has, if it fits the shards
};

}  // namespace nanorun
