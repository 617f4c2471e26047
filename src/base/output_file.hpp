#pragma once
// Files that the program writes: each is complete or absent, grows at its end, or is claimed for one command. Errors
// are those of src/base/files.hpp.

#include <cstdint>
#include <span>
#include <string>

#include "src/base/files.hpp"

namespace nanorun {

/// Lets the system begin to bring to disk what was written there, so that a flush finds less to do. Only a hint.
void begin_flush(const Descriptor& file, std::uint64_t offset, std::uint64_t bytes);

/// The path at which a file is written until it is complete.
inline std::string partial_of(const std::string& path) { return path + ".partial"; }

/// Whether an output may replace a regular file: what the user's --force says.
enum class Overwrite : bool { no, yes };

/// Throws where writing an output to `path`, by way of partial_of(path), would destroy something: `path` exists, unless
/// it is a regular file that `overwrite` allows to replace; partial_of(path) exists; or one of the two is one of the
/// `inputs`.
void require_free(const std::string& path, Overwrite overwrite, std::span<const std::string> inputs, ExitCode code);

/// Creates the empty file partial_of(path) for this command alone. Throws where that exists, since another command may
/// be writing it, and where `path` exists, unless it is a regular file and `overwrite` is yes.
void claim_output(const std::string& path, Overwrite overwrite, ExitCode code);

/// Lets write(partial) fill the file partial_of(path), flushes that to disk and renames it to `path`. If anything
/// throws, removes the partial file and leaves `path` as it was.
template <class Write>
void complete_file(const std::string& path, ExitCode code, Write&& write) {
  const std::string partial = partial_of(path);
  try {
    write(partial);
    sync_to_disk(partial, code);
    rename_file(partial, path, code);
  } catch (...) {
    quietly([&] { remove_file(partial, code); });
    throw;
  }
}

/// complete_file() for a file in the directory of a run, which this program has locked, so that it may replace what an
/// earlier run has left at partial_of(path).
template <class Write>
void replace_file(const std::string& path, ExitCode code, Write&& write) {
  complete_file(path, code, [&](const std::string& partial) {
    create_file(partial, code);
    write(partial);
  });
}

/// Replaces a regular file that has further hard links, as in a copy by cp -al, by a copy of its own, so that what is
/// written to it does not change what the other names show.
void unshare_file(const std::string& path, ExitCode code);

/// Puts a copy in the place of a file. Programs that have the file open keep it as it was.
void replace_by_copy(const std::string& path, ExitCode code);

/// A file that grows at its end.
class AppendFile {
 public:
  /// Opens or creates a regular file; unshares one with further hard links.
  AppendFile(const std::string& path, ExitCode code);

  void write(std::span<const std::byte> bytes);
  void write(const std::string& text) { write(std::as_bytes(std::span(text))); }
  /// Throws where the system reports only now that something could not be written.
  void close();
  /// Whether the path still names this file.
  bool in_place() const { return names_file(path_, file_, code_); }
  /// Number of names (hard links) that the file has; 0 where it was removed.
  std::uint64_t links() const;
  /// Everything that the file holds, even if it has no name any more.
  std::string text() const;

 private:
  std::string path_;
  ExitCode code_;
  Descriptor file_;
};

/// replace_file() by a file that holds `text`.
void replace_text(const std::string& path, ExitCode code, const std::string& text);

}  // namespace nanorun
