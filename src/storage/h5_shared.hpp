#pragma once
// How ranks that share a file find out together that one of them cannot open it.

#include <mpi.h>

#include <functional>
#include <memory>
#include <utility>

#include "src/base/mpi_hints.hpp"

namespace nanorun::h5 {

/// The ranks that share a file, all of which make the same calls; with MPI_COMM_NULL this rank is alone with it. Made
/// by src/comm/shared_files.
struct Sharing {
  /// Begins to watch a call that the ranks make together, and goes on until the result ends.
  using Watch = std::function<std::shared_ptr<void>()>;

  Sharing(MPI_Comm comm = MPI_COMM_NULL, Watch watch = {}, MpiHints hints = {})
      : comm(comm), watch(std::move(watch)), hints(std::move(hints)) {}

  MPI_Comm comm;
  Watch watch;     ///< empty: nobody ends a call in which a rank has failed alone, and the others wait for ever
  MpiHints hints;  ///< for MPI-IO; MPI ignores those that it does not know. Without any, transfers are independent
};

/// Collective. Runs `look` on every rank before collective calls of HDF5, which would wait for ever for a rank that has
/// failed. Where `look` throws an Error on some ranks, all ranks throw the Error of the lowest of these; the message
/// names that rank and its node unless all have failed. With MPI_COMM_NULL this rank is alone.
void look_together(MPI_Comm comm, const std::function<void()>& look);

}  // namespace nanorun::h5
