#pragma once
// Checkpoints, see docs/file_formats.md: one parallel HDF5 file a step, written to FILE.partial, closed, verified,
// fsynced and renamed. Any rank count may read what any other wrote.

#include <optional>
#include <string>
#include <vector>

#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/data.hpp"
#include "src/params.hpp"

namespace nanorun {

inline constexpr const char* checkpoint_format = "nanorun checkpoint";

/// What a run has done so far.
struct Progress {
  long step = 0;  ///< updates made
  Cursor cursor;  ///< where the next step reads
  double train_seconds = 0;
  std::uint64_t tokens = 0;
};

/// Identifies tensors and shapes, in whatever order: names and shapes of the parameter table hashed into 16 hexadecimal
/// digits.
std::string model_fingerprint(const ParameterTable& table);

class Checkpoints {
 public:
  /// `folder` is created on the first save; `deck` is the resolved deck as TOML, `model` its model_fingerprint.
  Checkpoints(Comm& comm, const CheckpointConfig& config, std::string folder, std::string deck, std::string model);

  /// Collective. Writes checkpoint_<step>.h5 and then removes older ones beyond keep and milestones; returns its path.
  /// Throws Error(checkpoint) on all ranks alike; the previous checkpoints stay untouched.
  std::string save(const Progress& progress, const std::vector<Slab<float>>& slabs);

  /// Collective. Resolves config.restart: "none" → nothing; a file → that file, or Error; "auto" → the newest file in
  /// the folder that verifies (damaged ones are warned of and passed over), nothing if there is none at all, or Error
  /// if none of them verifies or the newest belongs to another model. Fills the slabs. Throws Error(checkpoint) on all
  /// ranks alike; the slabs then hold anything.
  std::optional<Progress> restore(const std::vector<Slab<float>>& slabs);

  /// The checkpoint that restore() found, and its deck as TOML; empty before.
  const std::string& restored_file() const { return restored_file_; }
  const std::string& restored_deck() const { return restored_deck_; }

  /// Checkpoint files in the folder, in the order of their steps.
  std::vector<std::string> list() const;

 private:
  std::string path_of(long step) const;
  Progress load(const std::string& path, const std::vector<Slab<float>>& slabs);
  std::optional<Progress> load_newest(const std::vector<std::string>& files, const std::vector<Slab<float>>& slabs);
  void remove_leftovers() const;
  void prune(long step) const;

  Comm& comm_;
  const CheckpointConfig& config_;
  std::string folder_, deck_, model_;
  std::string restored_file_, restored_deck_;
};

/// Collective. Verifies format and every tensor's checksum, the tensors' rows spread over the ranks. Throws
/// Error(checkpoint) on all ranks alike, with one line naming file and object.
void verify_checkpoint(Comm& comm, const std::string& path);

}  // namespace nanorun
