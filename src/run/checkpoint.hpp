#pragma once
// The checkpoints of a run: one file for each saved step in the run's own directory. Any number of ranks may read what
// any other number wrote.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/base/files.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/run/checkpoint_background.hpp"
#include "src/run/checkpoint_file.hpp"
#include "src/run/checkpoint_link.hpp"
#include "src/run/walltime.hpp"

namespace nanorun {

/// A hash of ParameterTable::layout(), 16 hexadecimal digits: models with the same tensors have the same.
std::string model_fingerprint(const std::string& layout);

/// The checkpoints that a run has still to write.
struct DueCheckpoints {
  long after = 0;               ///< step that the run begins with: only checkpoints of later steps are due
  long last = 0;                ///< train.steps
  bool directory_stays = true;  ///< else the directory is set aside first, and only a trial is written into it as it is
};

class Checkpoints {
 public:
  /// `directory` is created when something is written. `deck`: the resolved deck as TOML. `model`: model_fingerprint()
  /// of the deck's model.
  Checkpoints(Comm& comm, const CheckpointConfig& config, std::string directory, std::string deck, std::string model);

  /// Sets what the files say of the training shards: shard_record() and the tokenizer.
  void set_shards(std::string record, TokenizerRecord tokenizer = {}) {
    header_.shards = std::move(record);
    header_.tokenizer = std::move(tokenizer);
  }

  /// Sets the provenance that the files hold: provenance_json() of rank 0, at most max_provenance_attribute bytes.
  void set_provenance(std::string provenance) { header_.provenance = std::move(provenance); }

  /// Further checkpoints go to another directory.
  void move_to(std::string directory) { directory_ = std::move(directory); }

  /// Collective. Writes checkpoint_<step>.h5 and returns its path. Then removes older checkpoints except those that
  /// checkpoint.keep and checkpoint.milestone_every keep. Throws Error(checkpoint) on all ranks alike; the earlier
  /// checkpoints are then untouched.
  std::string save(const Progress& progress, const std::vector<Slab<float>>& slabs);

  /// Collective. Begins save(): threads write the file while the ranks train. The slabs' data must stay as they are
  /// until finish(), unless ops work on host memory. None may be pending. Throws Error(checkpoint) on all ranks alike.
  void begin(const Progress& progress, const std::vector<Slab<float>>& slabs);
  /// Whether begin() was called without finish().
  bool pending() const { return pending_ != nullptr; }
  /// Whether this rank has written its part of the pending file, or failed to.
  bool written() const { return pending_->done(); }
  /// Step of the pending file.
  long pending_step() const { return pending_->step(); }
  /// Collective. Waits for the pending file, then ends as save() does.
  std::string finish();

  /// For rank 0. Whether the directory that save() or begin() wrote to has been moved or removed.
  bool moved() const;

  /// For one rank. Throws Error(checkpoint) where something stands in the way: the directory is a link that may not be
  /// used (CheckpointLink) or leads to checkpoints of which nothing says that they are this run's, or no checkpoint but
  /// something else has the name of the newest one, from which checkpoint.restart = "auto" would go on. Changes
  /// nothing.
  void require_usable_directory() const;

  /// For one rank. Throws Error(checkpoint) where save() could not write the checkpoints: no files can be made in the
  /// directory, or anything but a file stands under the name of an unfinished one that the run needs. Changes nothing.
  void require_free_names(const DueCheckpoints& due) const;

  /// For one rank. What probe() will warn of: files under the names of unfinished checkpoints that nanorun has not
  /// written, and that it keeps.
  std::vector<std::string> warnings(const DueCheckpoints& due) const;

  /// For one rank. Compares the space that the checkpoints need with what is free, and one file with the limit of this
  /// process. Throws Error(checkpoint); with checkpoint.on_failure = "warn" warns of space.
  void require_space(const DueCheckpoints& due, const std::vector<Slab<float>>& slabs) const;

  /// Collective. Finds out before training whether save() can write: calls require_free_names() and require_space(),
  /// then writes a small file in the same directory by the same code, reads it back and removes it. Throws
  /// Error(checkpoint) on all ranks alike.
  void probe(const DueCheckpoints& due, const std::vector<Slab<float>>& slabs);

  /// Collective. Estimates the seconds that save() takes here, from a trial: writes a file as save() does, and removes
  /// it. The file holds these tensors; if they have more than `enough` bytes, the first rows of each. `enough` bytes
  /// suffice to show the rate of a disk. Throws Error(checkpoint) on all ranks alike.
  double foretell_seconds(const std::vector<Slab<float>>& slabs, std::uint64_t enough = 64 << 20);

  /// Collective. Fills the slabs from the checkpoint that checkpoint.restart names, and returns its progress. A path
  /// names that file. "auto" means the newest sound file in the directory; damaged files are warned of and passed over.
  /// Returns nothing with "none", or with "auto" where the directory has no files. Changes nothing on disk. Throws
  /// Error(checkpoint) on all ranks alike if no file is sound, if a file cannot be read for another reason than damage,
  /// or if it is of another model or holds other optimizer state than the deck asks for. The slabs are then undefined.
  std::optional<Progress> restore(const std::vector<Slab<float>>& slabs);

  /// Collective. restore() for a dry run: finds the checkpoint or throws the same Error, but takes no lock on a linked
  /// directory and trusts require_usable_directory(). The slabs need no memory.
  std::optional<Progress> plan_restore(const std::vector<Slab<float>>& slabs);

  /// Path of the checkpoint that restore() or plan_restore() has found; empty if there is none.
  const std::string& restored_file() const { return restored_file_; }
  const CheckpointHeader& restored() const { return restored_; }
  /// For rank 0. Whether that checkpoint lies in the run's own directory, so that the run continues there.
  bool continues_here() const;

  /// For rank 0. Renames the checkpoints of later steps than `step`, so that restore() no longer finds them: they
  /// belong to a continuation that is abandoned. Returns lines for the log. Throws Error(checkpoint).
  std::vector<std::string> set_newer_aside(long step) const;

  /// Paths of the checkpoint files in the directory, in the order of their steps. Throws Error(checkpoint) where it
  /// cannot be listed.
  std::vector<std::string> list() const;

 private:
  std::string path_of(long step) const;
  std::optional<Progress> choose(const std::vector<Slab<float>>& slabs);
  [[noreturn]] void refuse(const std::string& path, const CheckpointContents& contents) const;
  Progress load(const std::string& path, const std::vector<Slab<float>>& slabs);
  std::optional<Progress> load_newest(const std::vector<std::string>& files, const std::vector<Slab<float>>& slabs);
  /// What has the name of an unfinished checkpoint.
  struct Unfinished {
    std::string path;
    std::string warning;  ///< why it is kept, and as what; empty where nanorun has written it
  };
  std::vector<Unfinished> unfinished(const std::string& next) const;
  void make_directory(const std::string& next);
  CheckpointHeader prepare(const Progress& progress);
  std::string conclude(const std::string& partial, long step);
  const char* other_part(const CheckpointHeader& found) const;
  void require_own(const std::string& path) const;
  void require_known_owner() const;
  void name_finished(const std::string& partial, const std::string& path) const;
  void prune(long step);
  Trial try_file(const std::vector<Slab<float>>& slabs, std::uint64_t divisor);

  Comm& comm_;
  const CheckpointConfig& config_;
  const MpiHints hints_;
  std::string directory_;
  const std::string mark_;      ///< run_mark() of the run's deck
  CheckpointLink link_;         ///< on rank 0
  Descriptor opened_;           ///< on rank 0: the directory of the last save()
  CheckpointHeader header_;     ///< what all files of this run share
  long trial_step_ = 0;         ///< trials are written under the name of the unfinished checkpoint of this step
  std::set<std::string> kept_;  ///< files that were not removed, of which a warning has told
  std::string restored_file_;
  CheckpointHeader restored_;
  std::unique_ptr<BackgroundCheckpoint> pending_;
};

}  // namespace nanorun
