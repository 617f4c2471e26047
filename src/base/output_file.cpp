#include "src/base/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "src/base/files_own.hpp"

namespace nanorun {

void begin_flush(const Descriptor& file, std::uint64_t offset, std::uint64_t bytes) {
  ::sync_file_range(file.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

namespace {

/// Throws unless nothing is there, or a regular file that `force` gives up.
void require_replaceable(const std::string& path, Overwrite overwrite, ExitCode code) {
  const FileKind found = kind_of_entry(path, code);
  if (found == FileKind::absent) return;
  if (found != FileKind::regular)
    throw Error(code, fmt::format("{}: cannot be replaced: {}, not a regular file; name another output", path,
                                  kind_text(found)));
  if (overwrite == Overwrite::no)
    throw Error(code, fmt::format("{}: exists; name another file, or replace it with --force", path));
}

void require_unclaimed(const std::string& partial, ExitCode code) {
  const FileKind found = kind_of_entry(partial, code);
  if (found == FileKind::absent) return;
  require_regular(partial, found, code);
  throw Error(code, partial +
                        ": exists: another command is writing it, or one that was killed has left it; remove it "
                        "if none is running");
}

}  // namespace

void require_free(const std::string& path, Overwrite overwrite, std::span<const std::string> inputs, ExitCode code) {
  for (const std::string& written : {path, partial_of(path)}) {
    for (const std::string& input : inputs) {
      if (same_file(written, input, code))
        throw Error(code, fmt::format("{}: is an input and cannot be written; name another output", written));
    }
  }
  require_replaceable(path, overwrite, code);
  require_unclaimed(partial_of(path), code);
}

void claim_output(const std::string& path, Overwrite overwrite, ExitCode code) {
  const std::string partial = partial_of(path);
  Descriptor file(::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    const int reason = errno;
    if (reason == EEXIST) require_unclaimed(partial, code);
    fail_by_system(code, partial, "cannot be opened", reason);
  }
  try {
    close_written(file, partial, code);
    require_replaceable(path, overwrite, code);  // another command may just have completed it
  } catch (...) {
    quietly([&] { remove_file(partial, code); });
    throw;
  }
}

void unshare_file(const std::string& path, ExitCode code) {
  if (kind_of_entry(path, code) != FileKind::regular) return;
  if (links_of(open_to_read(path, code), path, code) > 1) replace_by_copy(path, code);
}

void replace_by_copy(const std::string& path, ExitCode code) {
  const Descriptor from = open_to_read(path, code);
  clear_own_partial(partial_of(path), code);
  replace_file(path, code, [&](const std::string& partial) {
    constexpr std::uint64_t max_part = 1 << 20;  // bytes
    AppendFile to(partial, code);
    const std::uint64_t size = file_size(path, code);
    std::vector<std::byte> part;
    for (std::uint64_t at = 0; at < size; at += part.size()) {
      part.resize(std::min(max_part, size - at));
      read_at(from, path, at, part, code);
      to.write(part);
    }
    to.close();
  });
}

AppendFile::AppendFile(const std::string& path, ExitCode code) : path_(path), code_(code) {
  unshare_file(path, code);
  file_ = open_regular(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW, code);
}

std::uint64_t AppendFile::links() const { return links_of(file_, path_, code_); }

void AppendFile::write(std::span<const std::byte> bytes) { write_all(file_, path_, bytes, code_); }

void AppendFile::close() { close_written(file_, path_, code_); }

std::string AppendFile::text() const {
  struct stat own {};
  if (::fstat(file_.get(), &own) != 0) fail_by_system(code_, path_, "cannot be accessed", errno);
  std::string text(static_cast<std::size_t>(own.st_size), '\0');
  read_at(file_, path_, 0, std::as_writable_bytes(std::span(text)), code_);
  return text;
}

void replace_text(const std::string& path, ExitCode code, const std::string& text) {
  clear_own_partial(partial_of(path), code);
  replace_file(path, code, [&](const std::string& partial) {
    AppendFile file(partial, code);
    file.write(text);
    file.close();
  });
}

}  // namespace nanorun
