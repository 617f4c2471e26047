#pragma once
// Files that the program writes: each is complete or absent, grows at its end, or is claimed for one command. Errors
// are those of src/base/files.hpp.

#include <cstdint>
#include <span>
#include <string>

#include "src/base/files.hpp"

namespace nanorun {

/// Throws where an output cannot be written to `path`, by way of partial_of(path), without loss: something is there,
/// unless it is a regular file and `force` says that it may be replaced; something is at partial_of(path); or one of
/// the two is one of the `inputs`.
void require_free(const std::string& path, bool force, std::span<const std::string> inputs, ExitCode code);

/// Creates partial_of(path), empty, for this command alone. Throws, and leaves what is there, where that exists, as
/// another command may be writing it, or where `path` does, unless it is a regular file and `force`.
void claim_output(const std::string& path, bool force, ExitCode code);

/// Where a file is written until it is complete.
inline std::string partial_of(const std::string& path) { return path + ".partial"; }

/// Replaces `path` by what write(partial) puts into the file partial_of(path): that is flushed to disk, then renamed.
/// Where anything throws, the partial file is removed and `path` stays as it was.
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

/// complete_file() for a file of a run, of whose directory this program has the lock.
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

/// A file that grows at its end.
class AppendFile {
 public:
  /// Opens or creates a regular file; unshares one with further hard links.
  AppendFile(const std::string& path, ExitCode code);

  void write(std::span<const std::byte> bytes);
  void write(const std::string& text) { write(std::as_bytes(std::span(text))); }
  /// Reports what could not be written.
  void close();
  /// Whether the path still names this file.
  bool in_place() const { return names_file(path_, file_, code_); }
  /// Names that the file has, in whatever directories; 0 where it was removed.
  std::uint64_t links() const;
  /// Everything that the file holds, also when its name is gone.
  std::string text() const;

 private:
  std::string path_;
  ExitCode code_;
  Descriptor file_;
};

/// Replaces `path`, as replace_file() does, by a file that holds `text`.
void replace_text(const std::string& path, ExitCode code, const std::string& text);

}  // namespace nanorun
