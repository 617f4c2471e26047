#pragma once
// One checkpoint file, see docs/file_formats.md: written collectively, read back, and verified against checksums that
// bind every tensor to its name, its shape and the step.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/data/data.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

inline constexpr const char* checkpoint_format = "nanorun checkpoint";

/// What a run has done so far.
struct Progress {
  long step = 0;  ///< updates made
  Cursor cursor;  ///< where the next step reads
  double train_seconds = 0;
  std::uint64_t tokens = 0;
  double train_loss = std::numeric_limits<double>::quiet_NaN();  ///< of the last step; NaN where unknown
  std::vector<double> mlp_maxima{};                              ///< MlpScales::state()
  bool gradients_wait = false;  ///< those in /adam/gradient, for Adam's next update; not said by files below version 4
};

/// What a checkpoint says beside its tensors.
struct CheckpointHeader {
  std::string model;          ///< model_fingerprint of the parameter table
  std::string deck;           ///< resolved, TOML
  std::string shards;         ///< shard_record of the training shards; empty in files of version 1
  TokenizerRecord tokenizer;  ///< of the training shards; no name where none is known, and in files below version 3; no
                              ///< vocabulary in older ones
  Progress progress;
  std::uint64_t tensors = 0;
  std::uint64_t version = 0;  ///< of the file's format
  std::string provenance{};   ///< written and never read: what the program and the run were, JSON; may be empty
};

/// Bytes of a checkpoint with these tensors and, generously, of what HDF5 adds.
std::uint64_t checkpoint_bytes(const CheckpointHeader& header, const std::vector<Slab<float>>& slabs);

/// Collective. Writes a file of the newest version to `path`, flushes it to disk, and compares what was written with
/// the tensors in memory. Throws Error(checkpoint) on all ranks alike and leaves no file.
void write_checkpoint(Comm& comm, const std::string& path, CheckpointHeader header,
                      const std::vector<Slab<float>>& slabs);

/// Collective. Reads the header and how the file differs from a model of this fingerprint and these tensors. Throws
/// Error(checkpoint) on all ranks alike.
struct CheckpointContents {
  CheckpointHeader header;
  std::string difference;              ///< empty where there is none
  std::vector<std::string> differing;  ///< tensors that only one side has, or in another shape
};
CheckpointContents read_checkpoint(Comm& comm, const std::string& path, const std::string& model,
                                   const std::vector<Slab<float>>& slabs);

/// Collective. The header alone. Throws Error(checkpoint) on all ranks alike.
CheckpointHeader read_checkpoint_header(Comm& comm, const std::string& path);

/// For one rank. Throws Error(checkpoint) where the file is no checkpoint of a model of this fingerprint, by its
/// header.
void require_checkpoint_of(const std::string& path, const std::string& model);

/// Collective. Reads the slabs' values, where a slab has no memory only to verify them. Throws Error(checkpoint) on all
/// ranks alike; the slabs then hold anything.
void read_tensors(Comm& comm, const std::string& path, const CheckpointHeader& header,
                  const std::vector<Slab<float>>& slabs);

/// Collective. Verifies header and every tensor's checksum, the tensors' rows spread over the ranks. Throws
/// Error(checkpoint) on all ranks alike.
void verify_checkpoint(Comm& comm, const std::string& path);

}  // namespace nanorun
