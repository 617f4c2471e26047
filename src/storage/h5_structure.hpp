#pragma once
// Checks of a file before HDF5 opens it. In HDF5's older formats (superblocks of versions 0 and 1) the structure of a
// file has no checksums, and HDF5 crashes on some damaged ones. So a process of its own opens such a file first: this
// program, started once more by posix_spawn, which unlike fork does not copy memory that is registered with the
// network. That process starts neither MPI nor a device.

#include <string>

#include "src/base/error.hpp"

namespace nanorun::h5 {

/// Throws Error(code) where HDF5 is not to open the file: it is no regular file, or, with Cause::damage, a .bin file,
/// no HDF5 file, or one that crashes HDF5 or keeps it busy for ever. A file is examined once in a process.
void look_before_opening(const std::string& path, ExitCode code);

/// In the process that look_before_opening() started for this purpose, examines the file that it was handed and exits;
/// in any other process does nothing.
void examine_where_asked(char** argv);

}  // namespace nanorun::h5
