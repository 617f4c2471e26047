#pragma once
// The checkpoints of a run: one file per saved step in the run's own directory, all of one course of the training. Any
// number of ranks may read what any other number wrote.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/base/files.hpp"
#include "src/base/walltime.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/run/checkpoint_file.hpp"
#include "src/run/checkpoint_place.hpp"

namespace nanorun {

/// ParameterTable::layout() hashed into 16 hexadecimal digits.
std::string model_fingerprint(const std::string& layout);

class Checkpoints {
 public:
  /// `directory` is created when something is written; `deck` is the resolved deck as TOML, `model` its
  /// model_fingerprint.
  Checkpoints(Comm& comm, const CheckpointConfig& config, std::string directory, std::string deck, std::string model);

  /// The training shards, as run_data's shard_record writes them, and what they were encoded with; goes into the files.
  void set_shards(std::string record, TokenizerRecord tokenizer = {}) {
    header_.shards = std::move(record);
    header_.tokenizer = std::move(tokenizer);
  }

  /// Of rank 0, at most 60,000 bytes; goes into the files.
  void set_provenance(std::string provenance) { header_.provenance = std::move(provenance); }

  /// Further checkpoints go to another directory.
  void move_to(std::string directory) { directory_ = std::move(directory); }

  /// Collective. Writes checkpoint_<step>.h5 and then removes older ones beyond keep and milestones; returns its path.
  /// Throws Error(checkpoint) on all ranks alike; the previous checkpoints stay untouched.
  std::string save(const Progress& progress, const std::vector<Slab<float>>& slabs);

  /// For rank 0. Whether the directory that save() wrote to was moved or removed since.
  bool moved() const;

  /// Collective. Finds out before training what would keep save() from writing: writes a small file in the same place
  /// by the same code, reads it back and removes it, and compares what the checkpoints of the steps from `first` to
  /// `steps` need with the free space. Throws Error(checkpoint) on all ranks alike.
  void probe(long first, long steps, const std::vector<Slab<float>>& slabs);

  /// Collective. Seconds that save() will take here, from a trial: writes these tensors, or the first rows of each
  /// where all have more than `enough` bytes, as save() does, and removes the file. `enough` shows the rate of a disk.
  /// Throws Error(checkpoint) on all ranks alike.
  double foretell_seconds(const std::vector<Slab<float>>& slabs, std::uint64_t enough = 64 << 20);

  /// Collective. Resolves config.restart: "none" → nothing; a file → that file, or Error; "auto" → the newest file in
  /// the directory that verifies, nothing if there is none at all. Damaged files are warned of and passed over; Error
  /// if none verifies, the newest belongs to another model or holds other state than the deck asks for, or one cannot
  /// be read for another reason than damage. Fills the slabs, and changes nothing on disk. Throws Error(checkpoint) on
  /// all ranks alike; the slabs then hold anything.
  std::optional<Progress> restore(const std::vector<Slab<float>>& slabs);

  /// Collective. The same for a dry run, whose slabs need no memory: what restore() would find, or the Error that it
  /// would throw, but without the lock of a directory elsewhere.
  std::optional<Progress> plan_restore(const std::vector<Slab<float>>& slabs);

  /// The checkpoint that restore() or plan_restore() found, and its header; empty before.
  const std::string& restored_file() const { return restored_file_; }
  const CheckpointHeader& restored() const { return restored_; }
  /// Whether that checkpoint is one of the directory's own, so that the run goes on there. Rank 0's answer.
  bool continues_here() const;

  /// For rank 0. Moves the checkpoints after `step`, which belong to a continuation that is abandoned, to names that
  /// nothing here reads; returns what the log says of them. Throws Error(checkpoint).
  std::vector<std::string> set_newer_aside(long step) const;

  /// Checkpoint files in the directory, in the order of their steps. Throws Error(checkpoint) where it cannot be
  /// listed.
  std::vector<std::string> list() const;

 private:
  std::string path_of(long step) const;
  std::optional<Progress> choose(const std::vector<Slab<float>>& slabs);
  [[noreturn]] void refuse(const std::string& path, const CheckpointContents& contents) const;
  Progress load(const std::string& path, const std::vector<Slab<float>>& slabs);
  std::optional<Progress> load_newest(const std::vector<std::string>& files, const std::vector<Slab<float>>& slabs);
  void make_directory(const std::string& next);
  void require_space(long steps, std::uint64_t bytes) const;
  void prune(long step);
  Trial try_file(const std::vector<Slab<float>>& slabs, std::uint64_t divisor);

  Comm& comm_;
  const CheckpointConfig& config_;
  std::string directory_;
  CheckpointPlace locked_;      ///< of rank 0
  Descriptor place_;            ///< of rank 0: the directory that was written to last
  CheckpointHeader header_;     ///< what all files of this run share
  std::set<std::string> kept_;  ///< files that could not be removed, of which the user knows
  std::string restored_file_;
  CheckpointHeader restored_;
};

}  // namespace nanorun
