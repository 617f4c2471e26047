#include "src/base/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace nanorun {

namespace {

FileKind kind(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return FileKind::regular;
  if (S_ISDIR(status.st_mode)) return FileKind::directory;
  return S_ISLNK(status.st_mode) ? FileKind::symlink : FileKind::other;
}

/// Nothing where the path is absent.
template <class Stat>
std::optional<struct stat> look(Stat&& stat, const std::string& path, ExitCode code) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT) return std::nullopt;
  fail_by_system(code, path, "cannot be accessed", errno);
}

struct stat status_of(const std::string& path, ExitCode code) {
  const std::optional<struct stat> status = look(::stat, path, code);
  if (!status) throw Error(code, fmt::format("{}: {}", path, std::strerror(ENOENT)));
  return *status;
}

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

// --- Looking ---------------------------------------------------------------------------------------------------------

FileKind kind_of(const std::string& path, ExitCode code) {
  const std::optional<struct stat> status = look(::stat, path, code);
  return status ? kind(*status) : FileKind::absent;
}

FileKind kind_of_entry(const std::string& path, ExitCode code) {
  const std::optional<struct stat> status = look(::lstat, path, code);
  return status ? kind(*status) : FileKind::absent;
}

bool has_file(const std::string& path, ExitCode code) {
  const FileKind found = kind_of_entry(path, code);
  if (found != FileKind::absent) require_regular(path, found, code);
  return found != FileKind::absent;
}

/// Some file systems, such as /proc, give no sizes.
static void require_empty(const std::string& path, ExitCode code) {
  const Descriptor file = open_to_read(path, code);
  if (char byte; ::pread(file.get(), &byte, 1, 0) > 0)
    throw Error(code, path + ": its file system tells no size; copy it to another one");
}

std::uint64_t file_size(const std::string& path, ExitCode code) {
  const struct stat status = status_of(path, code);
  require_regular(path, kind(status), code);
  if (status.st_size == 0) require_empty(path, code);
  return static_cast<std::uint64_t>(status.st_size);
}

FileState state_of(const std::string& path, ExitCode code) {
  const struct stat status = status_of(path, code);
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

bool same_file(const std::string& a, const std::string& b, ExitCode code) {
  const std::optional<struct stat> first = look(::stat, a, code), second = look(::stat, b, code);
  return first && second && first->st_dev == second->st_dev && first->st_ino == second->st_ino;
}

std::vector<std::string> list_directory(const std::string& path, ExitCode code) {
  const auto close = [](DIR* directory) { ::closedir(directory); };
  const std::unique_ptr<DIR, decltype(close)> directory(::opendir(path.c_str()), close);
  if (!directory && errno == ENOENT) return {};
  if (!directory) fail_by_system(code, path, "cannot be listed", errno);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr && errno != 0) fail_by_system(code, path, "cannot be listed", errno);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> glob_paths(const std::string& pattern, ExitCode code) {
  // glob(3) hands failures to a function without context.
  thread_local std::pair<std::string, int> failure;
  failure = {};
  const auto keep = [](const char* path, int reason) {
    if (reason == ENOENT) return 0;
    failure = {path, reason};
    return 1;
  };
  glob_t matches{};
  const int status = ::glob(pattern.c_str(), 0, keep, &matches);
  std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (status == GLOB_ABORTED) fail_by_system(code, pattern, failure.first + " cannot be listed", failure.second);
  if (status == GLOB_NOSPACE) fail_by_system(code, pattern, "cannot be searched", ENOMEM);
  return paths;
}

std::string existing_part(const std::string& path, ExitCode code) {
  std::string part = path;
  while (kind_of_entry(part, code) == FileKind::absent && directory_of(part) != part) part = directory_of(part);
  return part;
}

std::uint64_t free_space(const std::string& path, ExitCode code) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) fail_by_system(code, path, "cannot be accessed", errno);
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

std::string working_directory(ExitCode code) {
  std::error_code error;
  const std::string path = std::filesystem::current_path(error).string();
  if (error) fail_by_system(code, ".", "the working directory cannot be found", error.value());
  return path;
}

std::string canonical_path(const std::string& path, ExitCode code) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error);
  if (!error) whole = std::filesystem::weakly_canonical(whole, error);
  if (error) fail_by_system(code, path, "cannot be found", error.value());
  return whole.string();
}

void require_possible_path(const std::string& path, ExitCode code) {
  const auto long_name = [](const auto& name) { return name.string().size() > NAME_MAX; };
  if (path.size() < PATH_MAX && std::ranges::none_of(std::filesystem::path(path), long_name)) return;
  fail_by_system(code, path, "cannot be a file", ENAMETOOLONG);
}

std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string directory_of(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

// --- Reading ---------------------------------------------------------------------------------------------------------

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

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

void require_writable(const std::string& path, ExitCode code) { open_regular(path, O_RDWR, code); }

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

std::string read_text(const std::string& path, std::uint64_t max_bytes, ExitCode code) {
  const Descriptor file = open_to_read(path, code);
  const std::uint64_t size = file_size(path, code);
  if (size > max_bytes) throw Error(code, fmt::format("{}: {} bytes; at most {} are allowed", path, size, max_bytes));
  std::string text(size, '\0');
  read_at(file, path, 0, std::as_writable_bytes(std::span(text)), code);
  return text;
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

void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code) {
  const Descriptor file = open_regular(path, O_RDWR | O_NOFOLLOW, code);
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  const bool is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
  fail_by_system(code, path, is_full ? "no space for the file" : "cannot be given space", errno);
}

void truncate_file(const std::string& path, std::uint64_t bytes, ExitCode code) {
  const Descriptor file = open_regular(path, O_RDWR | O_NOFOLLOW, code);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) fail_by_system(code, path, "cannot be shortened", errno);
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

bool names_file(const std::string& path, const Descriptor& file, ExitCode code) {
  const std::optional<struct stat> named = look(::stat, path, code);
  struct stat own {};
  if (::fstat(file.get(), &own) != 0) fail_by_system(code, path, "cannot be accessed", errno);
  return named && named->st_dev == own.st_dev && named->st_ino == own.st_ino;
}

// --- For the modules that open files
// -----------------------------------------------------------------------------------

bool passes(int reason) {
  const bool is_held = reason == EAGAIN || reason == EWOULDBLOCK || reason == ENOLCK;
  return is_held || reason == ESTALE || reason == EINTR;
}

void fail_by_system(ExitCode code, const std::string& path, const std::string& what, int reason) {
  const std::string message = fmt::format("{}: {}: {}", path, what, std::strerror(reason));
  if (passes(reason)) throw Busy(code, message);
  throw Error(code, message);
}

void require_regular(const std::string& path, FileKind found, ExitCode code) {
  if (found == FileKind::regular) return;
  throw Error(code, fmt::format("{}: {}, not a regular file", path, kind_text(found)));
}

const char* kind_text(FileKind kind) {
  if (kind == FileKind::directory) return "a directory";
  if (kind == FileKind::symlink) return "a symbolic link";
  return kind == FileKind::other ? "a device, FIFO or socket" : "a file";
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
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_by_system(code, path, "cannot be accessed", errno);
  require_regular(path, kind(status), code);
  return file;
}

void write_all(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, ExitCode code) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!write_whole(file.get(), text)) fail_by_system(code, path, "cannot be written", errno);
}

void close_written(Descriptor& file, const std::string& path, ExitCode code) {
  if (::close(file.release()) != 0 && errno != EINTR) fail_by_system(code, path, "cannot be written", errno);
}

std::uint64_t links_of(const Descriptor& file, const std::string& path, ExitCode code) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_by_system(code, path, "cannot be accessed", errno);
  return status.st_nlink;
}

}  // namespace nanorun
