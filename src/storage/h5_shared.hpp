#pragma once
// What the ranks that share a file agree on.

#include <mpi.h>

#include <functional>

namespace nanorun::h5 {

/// Collective; comes before collective calls of HDF5, which wait for a rank that has failed. Runs `look` on every rank:
/// where it throws an Error on any, all throw the one of the lowest such rank, which is named with its node unless all
/// have failed.
/// With MPI_COMM_NULL this rank is alone.
void look_together(MPI_Comm comm, const std::function<void()>& look);

}  // namespace nanorun::h5
