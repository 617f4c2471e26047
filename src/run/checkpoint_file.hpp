#pragma once
// One checkpoint file (docs/file_formats.md): all ranks write it together, read it back, and verify it against
// checksums that bind every tensor to its name, its shape and the step.

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/mpi_hints.hpp"
#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/run/checkpoint_header.hpp"

namespace nanorun {

/// Collective. Writes a file of the newest version to `path`, flushes it to disk, reads it back and compares it with
/// the tensors in memory. If that fails, leaves no file and throws Error(checkpoint) on all ranks alike. `hints`: for
/// MPI-IO.
void write_checkpoint(Comm& comm, const std::string& path, CheckpointHeader header,
                      const std::vector<Slab<float>>& slabs, const MpiHints& hints = {});

/// The header of a file, and how the file differs from a model and its tensors.
struct CheckpointContents {
  CheckpointHeader header;
  std::string difference;              ///< the first difference, for messages; empty where there is none
  std::vector<std::string> differing;  ///< tensors that only one side has, or in another shape
};
/// Collective. Compares a file with a model of this fingerprint and these tensors. Throws Error(checkpoint) on all
/// ranks alike.
CheckpointContents read_checkpoint(Comm& comm, const std::string& path, const std::string& model,
                                   const std::vector<Slab<float>>& slabs);

/// Collective. Reads the header alone. Throws Error(checkpoint) on all ranks alike.
CheckpointHeader read_checkpoint_header(Comm& comm, const std::string& path);

/// Collective. Reads the values of the slabs and verifies their checksums; values of a slab without memory are only
/// verified. Throws Error(checkpoint) on all ranks alike; the slabs are then undefined.
void read_tensors(Comm& comm, const std::string& path, const CheckpointHeader& header,
                  const std::vector<Slab<float>>& slabs);

/// Collective. Verifies the header and the checksums of all tensors; each rank reads a part of each tensor. Throws
/// Error(checkpoint) on all ranks alike.
void verify_checkpoint(Comm& comm, const std::string& path);

}  // namespace nanorun
