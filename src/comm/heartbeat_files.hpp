#pragma once
// The directory in which nodes see each other's heartbeats: a file for each node, named by the node's number, with a
// line for each of its ranks by their places.
//
// Files reach other nodes when MPI itself hangs, and need no open ports. A file has one length, and each access opens
// and closes it, so the close-to-open consistency of NFS is enough.

#include <span>
#include <string>
#include <vector>

#include "src/comm/culprit.hpp"

namespace nanorun {

class HeartbeatFiles {
 public:
  explicit HeartbeatFiles(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }

  /// Throws Error(output) where something else stands in the place of the directory, which may be absent, or of a file
  /// that a run on so many ranks may need: it has at most as many nodes. Changes nothing.
  void require_free(int ranks) const;
  /// Makes the directory for a run on so many ranks, and removes the heartbeats that a job which crashed has left
  /// there. Warns of what is left alone. Throws as require_free() does.
  void clear(int ranks) const;

  /// Throws Error(output), also where the file of the node holds something else.
  void write(int node, std::span<const Heartbeat> ranks) const;
  /// The heartbeats of the ranks of a node; zeros where they cannot be read.
  std::vector<Heartbeat> read(int node, int ranks) const;
  /// Removes the file of a node unless it holds something else, and the directory with the last one. Errors are
  /// dropped.
  void remove(int node) const;

 private:
  std::string directory_;
};

}  // namespace nanorun
