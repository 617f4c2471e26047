#pragma once
// Files with the name that an HDF5 file of this program has until it is complete.

#include <string>

#include "src/base/error.hpp"

namespace nanorun::h5 {

/// Whether what has such a name is no file that the program has written: no regular file, or neither an HDF5 file of
/// this format, by its root's attribute `format`, nor what is left of the writing of one: an empty file, zeros
/// throughout, HDF5 that cannot be opened, or HDF5 that holds nothing at all.
bool is_foreign_partial(const std::string& path, const std::string& format, ExitCode code);

}  // namespace nanorun::h5
