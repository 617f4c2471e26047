#include "src/comm/node_memory.hpp"

#include <cstdint>
#include <cstring>
#include <exception>

#include "src/comm/comm.hpp"

namespace nanorun {

namespace {

constexpr std::size_t cache_line = 64;

/// The memory begins with a page in each process, so that the ranks find the same place in it.
std::byte* aligned(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return static_cast<std::byte*>(memory) + (cache_line - address % cache_line) % cache_line;
}

}  // namespace

NodeMemory::NodeMemory(Comm& comm, std::size_t bytes) {
  const Watchdog::Guard guard = comm.watch("allocation of memory that ranks share");
  const std::size_t taken = bytes + cache_line;
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(comm.handle(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  const bool first = comm.rank_on_node() == 0;
  if (comm.ranks_of_node() == 1) {
    alone_ = std::make_unique<std::byte[]>(taken);
    data_ = aligned(alone_.get());
  } else {
    void* memory = nullptr;
    MPI_Aint size = 0;
    int unit = 1;
    MPI_Win_allocate_shared(first ? static_cast<MPI_Aint>(taken) : 0, 1, MPI_INFO_NULL, node, &memory, &window_);
    MPI_Win_shared_query(window_, 0, &size, &unit, &memory);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
    data_ = aligned(memory);
    if (first) std::memset(data_, 0, bytes);
    MPI_Barrier(node);
  }
  MPI_Comm_free(&node);
}

/// While an exception unwinds other ranks may not come here.
NodeMemory::~NodeMemory() {
  if (window_ == MPI_WIN_NULL || std::uncaught_exceptions() > 0) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

}  // namespace nanorun
