#pragma once
// Files that are open, by their descriptors: for modules that keep a file open, or read and write it in parts. Only
// regular files and directories are opened: opening a FIFO or device fails at once and never waits. Errors are those of
// src/base/paths.hpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "src/base/error.hpp"

namespace nanorun {

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Opens a regular file for reading. Throws at once, and never waits, where `path` is a directory, device or FIFO.
Descriptor open_to_read(const std::string& path, ExitCode code);

/// Opens a regular file for reading and writing.
Descriptor open_to_change(const std::string& path, ExitCode code);

/// Opens a directory, so that names_file() can tell later whether a path still names it.
Descriptor open_directory(const std::string& path, ExitCode code);

/// Opens a regular file; refuses anything else without waiting for it. `flags` are those of open(2).
Descriptor open_regular(const std::string& path, int flags, ExitCode code);

/// Fills `bytes` with the file's bytes from `offset` on; throws where there are fewer.
void read_at(const Descriptor& file, const std::string& path, std::uint64_t offset, std::span<std::byte> bytes,
             ExitCode code);

/// Writes all bytes from `offset` on.
void write_at(const Descriptor& file, const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes,
              ExitCode code);

/// Writes all bytes where the descriptor stands.
void write_all(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, ExitCode code);

/// Closes the file; some network file systems report only here that a write has failed.
void close_written(Descriptor& file, const std::string& path, ExitCode code);

/// Number of names (hard links) that the file has; 0 where it was removed.
std::uint64_t links_of(const Descriptor& file, const std::string& path, ExitCode code);

/// Whether `path` names the open file or directory.
bool names_file(const std::string& path, const Descriptor& file, ExitCode code);

}  // namespace nanorun
