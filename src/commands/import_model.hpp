#pragma once
// `nanorun import`: makes a checkpoint of a directory that `nanorun export` or another program has written.

#include <string>

namespace nanorun {

struct ImportOptions {
  std::string directory, checkpoint;
  bool force = false;  ///< replaces a checkpoint that exists
};

/// Writes a model in the format of export_model() into a checkpoint of step 0 with the optimizer state of a new run.
/// Another program may have trained the model further. One rank calls this. `provenance` is stored in the file, as in
/// checkpoints of runs. Throws Error: data where the directory is at fault, output where the checkpoint exists,
/// checkpoint where it cannot be written.
void import_model(const ImportOptions& options, const std::string& provenance);

}  // namespace nanorun
