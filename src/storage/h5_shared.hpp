#pragma once
// What the ranks that share a file agree on.

#include <mpi.h>

#include <functional>
#include <memory>
#include <utility>

namespace nanorun::h5 {

/// The ranks that share a file, all of which make the same calls; with MPI_COMM_NULL this rank is alone with it.
/// shared_files of src/comm makes it.
struct Sharing {
  /// Begins to watch a call that the ranks make together, and goes on until the result ends.
  using Watch = std::function<std::shared_ptr<void>()>;

  Sharing(MPI_Comm comm = MPI_COMM_NULL, Watch watch = {}) : comm(comm), watch(std::move(watch)) {}

  MPI_Comm comm;
  Watch watch;  ///< empty: nobody ends a call in which a rank has failed alone, and the others wait for ever
};

/// Collective; comes before collective calls of HDF5, which wait for a rank that has failed. Runs `look` on every rank:
/// where it throws an Error on any, all throw the one of the lowest such rank, which is named with its node unless all
/// have failed.
/// With MPI_COMM_NULL this rank is alone.
void look_together(MPI_Comm comm, const std::function<void()>& look);

}  // namespace nanorun::h5
