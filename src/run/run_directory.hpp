#pragma once
// outputs/<name>, the directory of everything that a run writes.

#include <optional>
#include <string>
#include <vector>

#include "src/base/file_lock.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/run/run_files.hpp"
#include "src/run/run_paths.hpp"

namespace nanorun {

/// Collective. Throws Error(usage) on all ranks alike where the deck has relative paths that all ranks open, and a rank
/// works in another directory than rank 0.
void require_same_directory(Comm& comm, const Config& config);

class RunDirectory {
 public:
  /// Collective. Creates the directory, unless an earlier run has, and locks it for the lifetime of the object. Touches
  /// nothing else in it before begin(). Throws Error(output) on all ranks alike where the directory cannot be written,
  /// another job holds the lock, or a rank does not see rank 0's directory under this path.
  RunDirectory(Comm& comm, const Config& config);
  /// If begin() was not reached, removes the directory and the lock file, if this object has made them, and an empty
  /// directory of checkpoints that was made since.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return paths_.path(); }
  std::string file(const std::string& name) const { return paths_.file(name); }
  std::string heartbeats() const { return paths_.heartbeats(); }
  std::string checkpoints() const { return paths_.checkpoints(); }
  const std::string& stop_file() const { return paths_.stop_file(); }

  /// text_of_run() for a file in the directory.
  std::optional<std::string> read(const std::string& name) const { return text_of_run(file(name)); }

  /// Collective. Throws, on all ranks alike, the errors of RunPaths where something stands in the place of the stop
  /// file or of the run's own files.
  void require_free(const Config& config, const Continuation& continuation, long first_step);

  /// How a run takes over the directory.
  enum class Start { resumed, anew };

  /// Collective. Makes the directory ready for a run that continues what lies there or, with Start::anew, for a new
  /// run: it then renames the directory of an earlier run to the first of <directory>.1, <directory>.2, ... that is
  /// free. Renames files that have the names of the run's, but that nanorun has not written. Removes a stop file that
  /// is older than this program, which started `seconds` ago. Returns lines for the log on rank 0. Throws Error(output)
  /// on all ranks alike.
  std::vector<std::string> begin(const Config& config, Start start, double seconds);

  /// For rank 0; called now and then, and before anything is written. If the directory or its lock was removed during
  /// the run, warns, makes the directory again and locks it; what is no lock in the lock's place gets another name. If
  /// another run or a file has the directory's place, path() becomes the first of <directory>.1, <directory>.2, ...
  /// that is free. Returns whether the directory is a new one. Throws Error(output).
  bool keep();

  /// For rank 0. Whether keep() has found another run or a file in the directory's place.
  bool displaced() const { return displaced_; }

  /// Replaces one of run_files() by way of a temporary file. What nanorun has not written under this name gets another,
  /// with a warning. Throws Error(output).
  void write(const std::string& name, const std::string& text) const;

 private:
  void lock();
  bool is_taken() const;
  bool lock_again();
  void move_beside();
  void require_in_sight();
  void require_appearance(const std::string& mark) const;
  void remove_unused();
  bool remove_earlier_stop_file(double seconds) const;
  std::string keep_earlier_run();
  void keep_foreign_files(const Config& config) const;

  Comm& comm_;
  RunPaths paths_;
  std::vector<FileLock> locks_;  ///< on rank 0
  Descriptor opened_;            ///< on rank 0: the directory that was locked last
  bool made_ = false;            ///< this object has made the directory
  bool made_lock_ = false;       ///< this object has made the lock file, and no run has begun
  bool no_checkpoints_ = false;  ///< there was no directory of checkpoints, and no run has begun
  bool displaced_ = false;
  bool warned_ = false;
};

}  // namespace nanorun
