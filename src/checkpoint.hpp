#pragma once
// Checkpoints: one parallel HDF5 file a step, written to FILE.partial, closed, verified, fsynced and renamed. Any rank
// count may read what any other wrote.
//
// Checkpoint format 1: root attributes format ("nanorun checkpoint"), format_version, model (fingerprint of the
// parameter table), deck (TOML text), step, and the cursor and totals of Progress; one dataset a tensor as named by
// Slab::dataset, each with the attribute checksum (h5::checksum over the whole tensor).

#include <optional>
#include <string>
#include <vector>

#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/data.hpp"
#include "src/optimizer.hpp"

namespace nanorun {

/// What a run has done so far.
struct Progress {
  long step = 0;  ///< updates made
  Cursor cursor;  ///< where the next step reads
  double train_seconds = 0;
  std::uint64_t tokens = 0;
};

/// Identifies tensors and shapes: names and shapes of the parameter table hashed into a short text.
std::string model_fingerprint(const ParameterTable& table);

class Checkpoints {
 public:
  /// `folder` is created on the first save.
  Checkpoints(Comm& comm, const CheckpointConfig& config, std::string folder, std::string deck, std::string model);

  /// Collective. Writes checkpoint_<step>.h5 and then removes old ones beyond keep and milestones. Throws
  /// Error(checkpoint); the previous checkpoints stay untouched.
  std::string save(const Progress& progress, const std::vector<Slab<float>>& slabs);

  /// Collective. Resolves config.restart: "none" → nothing; a file → that file, or Error; "auto" → the newest file in
  /// the folder that verifies (others are reported by `warn` and passed over). Fills the slabs.
  std::optional<Progress> restore(const std::vector<Slab<float>>& slabs);

  /// Checkpoint files in the folder, oldest first.
  std::vector<std::string> list() const;

 private:
  Comm& comm_;
  const CheckpointConfig& config_;
  std::string folder_, deck_, model_;
};

/// Verifies format and every tensor's checksum. Throws Error(checkpoint) with one line naming file and object.
void verify_checkpoint(Comm& comm, const std::string& path);

}  // namespace nanorun
