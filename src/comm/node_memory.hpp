#pragma once
// Memory that the ranks of a node share.

#include <mpi.h>

#include <cstddef>
#include <memory>

namespace nanorun {

class NodeMemory {
 public:
  /// Collective. Takes so many bytes for each rank of the communicator that shares memory with this one. Their contents
  /// are undefined.
  NodeMemory(MPI_Comm comm, std::size_t bytes_per_rank);
  /// Collective, except while an exception unwinds.
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  /// The bytes of all ranks of the node, those of the lowest rank first; aligned for cache lines.
  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<std::byte[]> alone_;  ///< of a rank that is alone on its node
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* data_ = nullptr;
};

}  // namespace nanorun
