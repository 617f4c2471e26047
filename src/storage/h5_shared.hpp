#pragma once
// How ranks that share a file find out together that one of them cannot open it.

#include <mpi.h>

#include <functional>

namespace nanorun::h5 {

/// Collective. Runs `look` on every rank before collective calls of HDF5, which would wait for ever for a rank that has
/// failed. Where `look` throws an Error on some ranks, all ranks throw the Error of the lowest of these; the message
/// names that rank and its node unless all have failed. With MPI_COMM_NULL this rank is alone.
void look_together(MPI_Comm comm, const std::function<void()>& look);

}  // namespace nanorun::h5
