#pragma once
// `nanorun import`: a directory that `nanorun export` has written, or another program, as a checkpoint.

#include <string>

namespace nanorun {

struct ImportOptions {
  std::string directory, checkpoint;
  bool force = false;  ///< replace a file that exists
};

/// Writes what export_model() has left, or a program that has trained it further, into a checkpoint of step 0, whose
/// optimizer's state is that of a new run. One rank calls this. Throws Error: data for the directory, output where the
/// checkpoint exists, checkpoint where it cannot be written. `provenance` goes into the file, as into a run's.
void import_model(const ImportOptions& options, const std::string& provenance);

}  // namespace nanorun
