#pragma once
// The paths of everything that a run writes, in outputs/<name>, and what is there that may keep the run from it. A
// start looks before it changes anything; a dry run only looks. All of this is for one rank, and changes nothing.

#include <string>
#include <utility>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"
#include "src/config/config.hpp"
#include "src/run/earlier_run.hpp"
#include "src/run/run_files.hpp"

namespace nanorun {

/// Keys of the deck with relative paths at which all ranks look.
std::vector<std::string> relative_keys(const Config& config);

/// Throws where a run of the deck could never open its files: Error(usage) if the deck has relative paths and the
/// working directory is gone, Error(output) or Error(checkpoint) if a path of the run's files is too long, also if the
/// run must move its directory to another name (RunDirectory::keep).
void require_possible_paths(const Config& config);

class RunPaths {
 public:
  explicit RunPaths(const Config& config);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string lock() const;
  std::string heartbeats() const { return file("heartbeats"); }
  std::string checkpoints() const { return file("checkpoints"); }
  const std::string& stop_file() const { return stop_file_; }
  /// Goes on with another directory; the stop file stays.
  void move_to(std::string path) { path_ = std::move(path); }

  /// Throws Error(output) where the directory has, or lies among, the checkpoints of another run, where it cannot be
  /// made or written, or where something else has the name of its lock file; Error(usage) where the stop file has the
  /// path of the directory or of one above.
  void require_usable() const;
  /// Throws Error(output) where another job holds the lock.
  void require_unlocked() const;
  /// The error of require_unlocked(). `holder`: what the lock file says. `elsewhere`: the lock file has further hard
  /// links, by one of which the job may know it.
  Error in_use(const std::string& holder, bool elsewhere) const;

  /// Throws Error(usage) where no stop file can be made under its path, or the path is that of a file which the run
  /// itself writes; Error(output) where something is there that a run may not remove.
  void require_free_stop_file() const;
  /// Throws Error(output) where anything but a file that the run may write stands under a name that the run on so many
  /// ranks needs. What the run sets aside before it writes is no obstacle. Throws Error(usage) where a start that goes
  /// on behind `first_step` steps would rename, replace or remove a file that the deck names.
  void require_free_files(const Config& config, int ranks, const Continuation& continuation, long first_step) const;

  /// The place of a file, as clear_own_place() takes it.
  struct Place {
    std::string path;
    IsOwn is_own;
    RunFile file;
    bool partial = false;  ///< it is the partial file of `file`
  };
  /// The places of the files that the run writes, and of partial files that are there.
  std::vector<Place> places(const Config& config, const Continuation& continuation) const;
  /// What a start that goes on here behind `first_step` steps will warn of: files that it keeps under other names, and
  /// steps that the metrics or the trace lack.
  std::vector<std::string> warnings(const Config& config, const Continuation& continuation, long first_step) const;
  /// Whether a start gives the directory another name, to keep the run in it.
  bool is_set_aside(const Continuation& continuation) const;

  /// Whether an earlier run left anything but its lock, marks beside it, a stop file and empty directories.
  bool holds_a_run() const;

 private:
  void require_stop_file_elsewhere() const;
  void require_no_checkpoints_of_others() const;
  void require_movable() const;
  bool is_own_file(const std::string& path) const;
  void require_inputs_stay(const Config& config, const Continuation& continuation, long first_step) const;

  std::string path_;
  std::string stop_file_;
};

}  // namespace nanorun
