#pragma once
// The path of an HDF5 file that the ranks write together.

#include <string>

#include "src/base/error.hpp"

namespace nanorun::h5 {

/// Throws Error(code) where the path is longer than ranks can share.
void require_sharable(const std::string& path, ExitCode code);

}  // namespace nanorun::h5
