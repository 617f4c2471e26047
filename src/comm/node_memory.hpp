#pragma once
// Memory that the ranks of a node share.

#include <mpi.h>

#include <cstddef>
#include <memory>

namespace nanorun {

class Comm;

class NodeMemory {
 public:
  /// Collective. Takes so many bytes, all zeros, on each node.
  NodeMemory(Comm& comm, std::size_t bytes);
  /// Collective, except while an exception unwinds.
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  /// Aligned for cache lines.
  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<std::byte[]> alone_;  ///< of a rank that is alone on its node
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* data_ = nullptr;
};

}  // namespace nanorun
