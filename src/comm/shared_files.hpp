#pragma once
// Files that the ranks of a communicator write and read together.

#include "src/comm/comm.hpp"
#include "src/storage/h5_shared.hpp"

namespace nanorun {

/// Opens an HDF5 file for all ranks of `comm`, which must outlive it. Each call that the ranks make together on the
/// file is watched as a collective; `what` names it in messages. `hints`: for MPI-IO.
h5::Sharing shared_files(Comm& comm, const char* what, MpiHints hints = {});

}  // namespace nanorun
