#include "src/base/files.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <span>

namespace nanorun {

namespace {

/// The descriptor of the pipe or socket of this process that `path` names; -1 where it names something else.
int stream_named(const std::string& path) {
  int number = -1;
  if (path == "/dev/stdin") number = STDIN_FILENO;
  for (const std::string directory : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(directory)) continue;
    const char* end = path.data() + path.size();
    if (std::from_chars(path.data() + directory.size(), end, number).ptr != end) return -1;
  }
  struct stat status {};
  if (number < 0 || ::fstat(number, &status) != 0) return -1;
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) ? number : -1;
}

}  // namespace

// --- Reading ---------------------------------------------------------------------------------------------------------

std::string read_text(const std::string& path, std::uint64_t max_bytes, ExitCode code) {
  const Descriptor file = open_to_read(path, code);
  const std::uint64_t size = file_size(path, code);
  if (size > max_bytes) throw Error(code, fmt::format("{}: {} bytes; at most {} are allowed", path, size, max_bytes));
  std::string text(size, '\0');
  read_at(file, path, 0, std::as_writable_bytes(std::span(text)), code);
  return text;
}

std::string read_start(const std::string& path, std::uint64_t max_bytes, ExitCode code) {
  std::string start(std::min(max_bytes, file_size(path, code)), '\0');
  read_at(open_to_read(path, code), path, 0, std::as_writable_bytes(std::span(start)), code);
  return start;
}

std::string read_input(const std::string& path, std::uint64_t max_bytes, ExitCode code) {
  const int stream = stream_named(path);
  if (stream < 0) return read_text(path, max_bytes, code);
  std::string text;
  std::array<char, 65536> buffer;
  while (const ssize_t count = ::read(stream, buffer.data(), buffer.size())) {
    if (count > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd event{stream, POLLIN, 0};
      ::poll(&event, 1, -1);
    } else if (errno != EINTR) {
      fail_by_system(code, path, "cannot be read", errno);
    }
    if (text.size() > max_bytes) throw Error(code, fmt::format("{}: more than {} bytes", path, max_bytes));
  }
  return text;
}

// --- Writing ---------------------------------------------------------------------------------------------------------

void require_writable(const std::string& path, ExitCode code) { open_regular(path, O_RDWR, code); }

void require_possible_directory(const std::string& path, ExitCode code) {
  const std::string there = existing_part(path, code);
  if (kind_of(there, code) != FileKind::directory) fail_by_system(code, path, "cannot be created", ENOTDIR);
  if (::access(there.c_str(), W_OK | X_OK) == 0) return;
  fail_by_system(code, path, there == path ? "cannot be written" : "cannot be created", errno);
}

void make_directories(const std::string& path, ExitCode code) {
  require_possible_directory(path, code);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_by_system(code, path, "cannot be created", error.value());
  require_possible_directory(path, code);  // what was created may be denied, too
}

void remove_file(const std::string& path, ExitCode code) {
  const FileKind found = kind_of_entry(path, code);
  if (found == FileKind::absent) return;
  if (found != FileKind::regular)
    throw Error(code, fmt::format("{}: cannot be removed: {}, not a regular file", path, kind_text(found)));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_by_system(code, path, "cannot be removed", errno);
}

void remove_empty_directory(const std::string& path, ExitCode code) {
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST) return;
  fail_by_system(code, path, "cannot be removed", errno);
}

void overwrite_start(const std::string& path, const std::string& text, ExitCode code) {
  Descriptor file = open_regular(path, O_WRONLY | O_CREAT | O_NOFOLLOW, code);
  write_all(file, path, std::as_bytes(std::span(text)), code);
  close_written(file, path, code);
}

void create_file(const std::string& path, ExitCode code) {
  remove_file(path, code);
  Descriptor file = open_regular(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, code);
  close_written(file, path, code);
}

std::uint64_t file_size_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code) {
  const Descriptor file = open_regular(path, O_RDWR | O_NOFOLLOW, code);
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  const bool is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
  fail_by_system(code, path, is_full ? "no space for the file" : "cannot be given space", errno);
}

void truncate_file(const std::string& path, std::uint64_t bytes, ExitCode code) {
  const Descriptor file = open_regular(path, O_RDWR | O_NOFOLLOW, code);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    fail_by_system(code, path, "cannot be given its size", errno);
}

void sync_to_disk(const std::string& path, ExitCode code) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_by_system(code, path, "cannot be opened", errno);
  if (::fsync(file.get()) != 0) fail_by_system(code, path, "cannot be flushed to disk", errno);
  close_written(file, path, code);
}

void sync_directory(const std::string& path, ExitCode code) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 && errno == EACCES) return;  // names may be changed in it, but not listed
  if (directory.get() < 0) fail_by_system(code, path, "cannot be opened", errno);
  if (::fsync(directory.get()) == 0) return;
  constexpr std::array not_offered = {EINVAL, ENOTSUP, EOPNOTSUPP, ENOSYS, ENOTTY, EBADF, EISDIR, EROFS, EACCES, EPERM};
  if (std::ranges::find(not_offered, errno) != not_offered.end()) return;
  fail_by_system(code, path, "cannot be flushed to disk", errno);
}

void rename_file(const std::string& from, const std::string& to, ExitCode code) {
  const FileKind found = kind_of_entry(to, code);
  if (found != FileKind::absent && found != FileKind::regular)
    throw Error(code, fmt::format("{}: cannot be replaced: {}, not a regular file", to, kind_text(found)));
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_by_system(code, from, "cannot be renamed to " + to, errno);
  sync_directory(directory_of(to), code);
}

std::string free_name(const std::string& path, ExitCode code) {
  for (int number = 1;; ++number) {
    const std::string name = fmt::format("{}.{}", path, number);
    if (kind_of_entry(name, code) == FileKind::absent) return name;
  }
}

std::string set_aside(const std::string& path, ExitCode code) {
  const std::string to = free_name(path, code);
  if (std::rename(path.c_str(), to.c_str()) != 0) fail_by_system(code, path, "cannot be renamed to " + to, errno);
  sync_directory(directory_of(to), code);
  return to;
}

}  // namespace nanorun
