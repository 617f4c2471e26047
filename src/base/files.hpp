#pragma once
// Reads and changes files by path. This module, open_file, output_file (files that grow or are replaced as a whole),
// files_own and file_lock alone open, create, rename and remove files, except those that HDF5 opens. Errors are those
// of src/base/paths.hpp; none is dropped. A file that is written as a whole is complete or absent. Nothing but a
// regular file is replaced: no directory, device, FIFO or symbolic link is removed or renamed over.

#include <cstdint>
#include <string>

#include "src/base/error.hpp"
#include "src/base/open_file.hpp"
#include "src/base/paths.hpp"

namespace nanorun {

// --- Reading ---------------------------------------------------------------------------------------------------------

/// The text of a regular file of at most max_bytes.
std::string read_text(const std::string& path, std::uint64_t max_bytes, ExitCode code);

/// read_text(), which also reads a pipe or socket that this process was started with, by a name such as /dev/stdin or
/// /dev/fd/63, to its end. Refuses any other FIFO, device or socket without waiting for it.
std::string read_input(const std::string& path, std::uint64_t max_bytes, ExitCode code);

// --- Writing ---------------------------------------------------------------------------------------------------------

/// Throws where a regular file cannot be opened for writing. Changes nothing.
void require_writable(const std::string& path, ExitCode code);

/// Throws where files cannot be made in the directory, or where it is not there and cannot be created. Changes nothing.
void require_possible_directory(const std::string& path, ExitCode code);

/// Creates the directory and those above it, unless it is there. Throws where files cannot be made in it.
void make_directories(const std::string& path, ExitCode code);

/// Removes a regular file, if it is there. Throws where something else is there.
void remove_file(const std::string& path, ExitCode code);

/// Removes a directory, if it is there and empty.
void remove_empty_directory(const std::string& path, ExitCode code);

/// Creates an empty file. Replaces a regular file, which a run that was cut short may have left there.
void create_file(const std::string& path, ExitCode code);

/// Writes `text` over the beginning of a regular file, which is created if need be. Opens and closes the file, so that
/// network file systems show the text to other nodes.
void overwrite_start(const std::string& path, const std::string& text, ExitCode code);

/// Takes disk space for the first `bytes` of a file. Comes before HDF5 writes the file, since HDF5 cannot close a file
/// properly after a write has failed. Does nothing on file systems that cannot reserve space.
void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Sets the size of a file.
void truncate_file(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Returns when the contents of a file are on disk.
void sync_to_disk(const std::string& path, ExitCode code);

/// Returns when the names in a directory are on disk, or at once where its file system does not offer that.
void sync_directory(const std::string& path, ExitCode code);

/// Renames a file. Replaces a regular file of the new name. The new name is on disk when it returns.
void rename_file(const std::string& from, const std::string& to, ExitCode code);

/// The first of `path`.1, .2, ... that names nothing.
std::string free_name(const std::string& path, ExitCode code);

/// Renames a file or directory to free_name(path); returns the new path.
std::string set_aside(const std::string& path, ExitCode code);

}  // namespace nanorun
