#include "src/base/open_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "src/base/paths.hpp"

namespace nanorun {

namespace {

struct stat status_of(const Descriptor& file, const std::string& path, ExitCode code) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_by_system(code, path, "cannot be accessed", errno);
  return status;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor open_to_change(const std::string& path, ExitCode code) { return open_regular(path, O_RDWR, code); }

Descriptor open_to_read(const std::string& path, ExitCode code) {
  const FileKind found = kind_of(path, code);
  if (found == FileKind::absent) throw Error(code, path + ": no such file");
  if (found == FileKind::directory) throw Error(code, path + ": a directory; name a file in it");
  return open_regular(path, O_RDONLY, code);
}

Descriptor open_directory(const std::string& path, ExitCode code) {
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) fail_by_system(code, path, "cannot be opened", errno);
  return directory;
}

Descriptor open_regular(const std::string& path, int flags, ExitCode code) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  if (file.get() < 0) {
    const int reason = errno;
    const FileKind found = kind_of_entry(path, code);
    const bool wrong_kind = reason == ELOOP || reason == EISDIR || reason == ENXIO;
    if (wrong_kind && found != FileKind::absent) require_regular(path, found, code);
    fail_by_system(code, path, "cannot be opened", reason);
  }
  require_regular(path, kind_of_mode(status_of(file, path, code).st_mode), code);
  return file;
}

void read_at(const Descriptor& file, const std::string& path, std::uint64_t offset, std::span<std::byte> bytes,
             ExitCode code) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail_by_system(code, path, fmt::format("{} bytes at {} cannot be read", bytes.size(), offset), errno);
    if (count == 0)
      throw Error(code, fmt::format("{}: truncated: ends at byte {}, {} more expected", path, offset, bytes.size()));
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void write_at(const Descriptor& file, const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes,
              ExitCode code) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_by_system(code, path, "cannot be written", count < 0 ? errno : ENOSPC);
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void write_all(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, ExitCode code) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!write_whole(file.get(), text)) fail_by_system(code, path, "cannot be written", errno);
}

void close_written(Descriptor& file, const std::string& path, ExitCode code) {
  if (::close(file.release()) != 0 && errno != EINTR) fail_by_system(code, path, "cannot be written", errno);
}

std::uint64_t links_of(const Descriptor& file, const std::string& path, ExitCode code) {
  return status_of(file, path, code).st_nlink;
}

bool names_file(const std::string& path, const Descriptor& file, ExitCode code) {
  struct stat named {};
  const bool exists = ::stat(path.c_str(), &named) == 0;
  if (!exists && errno != ENOENT) fail_by_system(code, path, "cannot be accessed", errno);
  const struct stat own = status_of(file, path, code);
  return exists && named.st_dev == own.st_dev && named.st_ino == own.st_ino;
}

}  // namespace nanorun
