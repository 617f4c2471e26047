#pragma once
// outputs/<name>: where everything that a run writes lies.

#include <optional>
#include <string>
#include <vector>

#include "src/base/file_lock.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// Throws where no run of the deck can be: Error(usage) where the deck has relative paths and the working directory is
/// gone, Error(output) or Error(checkpoint) where a path of the run's files is too long.
void require_possible_paths(const Config& config);

/// Collective. Throws Error(usage) on all ranks alike where a rank works in another directory than rank 0 and the deck
/// has relative paths for all ranks.
void require_same_directory(Comm& comm, const Config& config);

/// Of the batch job that this process is part of; empty outside of one.
std::string job_id();

/// Who runs, as lock files say: the batch job where there is one, process and node. And whether a text is one of these.
std::string own_name();
bool is_lock_text(const std::string& text);

/// In a lock file, before the path of the run's directory, where the locked directory has the checkpoints of a run
/// that lies elsewhere.
inline constexpr const char* checkpoints_of = "; checkpoints of ";
/// That path by the text of a lock file; empty where the directory is not one of checkpoints.
std::string owner_in_lock(const std::string& text);
/// Whether files with the names of checkpoints lie in the directory itself.
bool holds_checkpoints(const std::string& directory, ExitCode code);

/// Text of a file that an earlier run has left; nothing where there is none. Throws Error(output).
std::optional<std::string> text_of_run(const std::string& path);

class RunDirectory {
 public:
  /// Collective. Creates the directory, unless an earlier run has, and locks it for the lifetime of the object; nothing
  /// else in it is touched before begin(). Throws Error(output) on all ranks alike when it cannot be written, another
  /// job holds the lock, or a rank does not see the directory of rank 0 there.
  RunDirectory(Comm& comm, const Config& config);
  /// Where no run began, the directory and the lock file do not stay if this object has made them.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string heartbeats() const { return file("heartbeats"); }
  std::string checkpoints() const { return file("checkpoints"); }
  const std::string& stop_file() const { return stop_file_; }

  /// text_of_run() of a file of the directory.
  std::optional<std::string> read(const std::string& name) const { return text_of_run(file(name)); }

  /// Collective. Throws on all ranks alike: Error(usage) where the stop file is one that the run itself writes,
  /// Error(output) where begin() could not remove it.
  void require_free_stop_file();

  /// Collective. Makes the directory ready for a run that goes on with what lies there, or, `anew`, for one that
  /// starts: what an earlier run has left is then renamed to <directory>.1, .2, .... Removes a stop file that was made
  /// before this program started, `seconds` ago; a newer one stays. Returns lines for the log on rank 0. Throws
  /// Error(output) on all ranks alike.
  std::vector<std::string> begin(bool anew, double seconds);

  /// For rank 0, now and then and before anything is written: where the directory or its lock was removed while the run
  /// goes on, says so, makes it again and locks it. Where another run or a file lies there now, path() becomes
  /// <directory>.1, .2, ..., the first that is free. Returns whether the directory is a new one. Throws Error(output).
  bool keep();

  /// Whether keep() has found something else there. Rank 0's answer.
  bool displaced() const { return displaced_; }

  /// Replaces a file by way of a temporary one. Throws Error(output).
  void write(const std::string& name, const std::string& text) const;

 private:
  void lock();
  void require_no_checkpoints_of_others() const;
  bool is_taken() const;
  void make_again();
  void move_beside();
  void require_in_sight();
  void require_appearance(const std::string& mark) const;
  void remove_unused();
  bool holds_a_run() const;
  bool is_own_file(const std::string& path) const;
  bool remove_earlier_stop_file(double seconds) const;
  void keep_foreign_files() const;
  void keep_foreign_partials() const;

  Comm& comm_;
  std::string path_;
  std::string stop_file_;
  std::vector<FileLock> locks_;  ///< of rank 0
  Descriptor place_;             ///< of rank 0: the directory that was locked last
  bool made_ = false;            ///< the directory, by this object
  bool made_lock_ = false;       ///< the lock file, by this object, and no run has begun
  bool foreign_ = false;         ///< no run has left a trace in the directory
  bool displaced_ = false;
  bool warned_ = false;
};

}  // namespace nanorun
