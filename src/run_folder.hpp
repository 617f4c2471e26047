#pragma once
// outputs/<name>: where everything that a run writes lies.

#include <string>
#include <vector>

#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/files.hpp"

namespace nanorun {

class RunFolder {
 public:
  /// Collective. Creates the folder and locks it for the lifetime of the object. A folder of an earlier run is
  /// continued with restart = "auto" or a file, and renamed to <folder>.1, .2, ... with restart = "none". Throws
  /// Error(output) on all ranks alike when it cannot be written or another job holds the lock.
  RunFolder(Comm& comm, const Config& config);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string heartbeats() const { return file("heartbeats"); }
  std::string checkpoints() const { return file("checkpoints"); }
  std::string stop_file(const StopConfig& config) const { return config.file.empty() ? file("stop") : config.file; }

  /// Replaces a file by way of a temporary one. Throws Error(output).
  void write(const std::string& name, const std::string& text) const;

 private:
  void prepare(const Config& config);
  void lock();

  std::string path_;
  std::vector<FileLock> locks_;  ///< of rank 0
};

}  // namespace nanorun
