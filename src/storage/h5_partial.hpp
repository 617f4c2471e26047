#pragma once
// Files with the name that an HDF5 file of this program has until it is complete.

#include <string>

#include "src/base/error.hpp"

namespace nanorun::h5 {

/// Whether a regular file with this name comes from another program. This program leaves HDF5 files whose root
/// attribute `format` is `format`, and as remains of an interrupted write: empty files, files of zeros, HDF5 that
/// cannot be opened, and HDF5 that holds nothing.
bool is_foreign_partial(const std::string& path, const std::string& format, ExitCode code);

}  // namespace nanorun::h5
