#pragma once
// How a run saves its progress: at once, or in the background while it trains; and what it does where that fails.

#include <functional>
#include <string>

#include "src/run/run_setup.hpp"
#include "src/run/walltime_watch.hpp"

namespace nanorun {

/// Whether a run may go on without a checkpoint if checkpoint.on_failure says so.
enum class Needed : bool { no, yes };

/// All member functions that are not const are collective. They throw Error(checkpoint) on all ranks alike where a
/// checkpoint cannot be written and is needed, or checkpoint.on_failure is "stop"; else they warn.
class CheckpointSaver {
 public:
  /// The run begins with a progress that is saved.
  CheckpointSaver(RunSetup& run, WalltimeWatch& walltime);

  /// Saves the progress and waits for that, and for a file that is pending. Writes nothing where no step has been made
  /// since the last checkpoint.
  void save(const Progress& progress, Needed needed);
  /// save(), but with checkpoint.background the file stays pending.
  void begin(const Progress& progress);
  /// Waits for the file that is pending, if any; if the directory is gone with it, saves the present progress.
  void finish(const Progress& progress, Needed needed);

  /// Whether a file is pending.
  bool pending() const { return run_.checkpoints.pending(); }
  /// Whether this rank still writes its part of the pending file.
  bool writes() const { return pending() && !run_.checkpoints.written(); }

  /// Makes sure that the run has a directory, which may have been moved away, and that checkpoints go there.
  void keep_directory();
  /// Takes no progress as saved: the earlier checkpoints are elsewhere.
  void forget() { saved_step_ = -1; }

 private:
  Progress complete(Progress progress) const;
  bool displaced(const Error& error);
  std::string write(const Progress& progress);
  void attempt(Needed needed, const std::function<void()>& work);
  void record(long step, const std::string& file);

  RunSetup& run_;
  WalltimeWatch& walltime_;
  long saved_step_;
  double begin_ = 0;  ///< of the pending file, in seconds since the program's start
};

}  // namespace nanorun
