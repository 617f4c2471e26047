#pragma once
// File operations behind outputs that must be complete or absent. Failures throw Error with the caller's code, naming
// the file and the system's reason.

#include <cstdint>
#include <string>

#include "src/error.hpp"

namespace nanorun {

/// Takes disk space for the first `bytes` of a file, created if need be; done before HDF5 writes the file, which cannot
/// give up in order when a write fails. Does nothing on file systems that cannot reserve space.
void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Returns when the contents of a file, or the names in a folder, are on disk.
void sync_to_disk(const std::string& path, ExitCode code);

/// Gives a file its final name, in place of any file of that name; the name is on disk when it returns.
void rename_file(const std::string& from, const std::string& to, ExitCode code);

}  // namespace nanorun
