#include "src/base/files_own.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

namespace nanorun {

namespace {

[[noreturn]] void fail_at(ExitCode code, const std::string& path, const std::string& what, int reason) {
  throw Error(code, fmt::format("{}: {}: {}", path, what, std::strerror(reason)));
}

#ifdef STATX_ATTR_MOUNT_ROOT
/// Attributes of what the path names, STATX_ATTR_...; 0 where the system does not tell. `flags`: AT_SYMLINK_NOFOLLOW,
/// or 0 to follow a link.
std::uint64_t attributes_of(const std::string& path, int flags) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), flags, 0, &status) != 0) return 0;
  return status.stx_attributes & status.stx_attributes_mask;
}
#endif

}  // namespace

void require_own_place(const std::string& path, FileKind wanted, ExitCode code) {
  const FileKind found = kind_of_entry(path, code);
  if (found == wanted || found == FileKind::absent) return;
  throw Error(code, fmt::format("{}: {} stands where {} of the run belongs: move it away", path, kind_text(found),
                                kind_text(wanted)));
}

std::string foreign_warning(const std::string& path, ExitCode code, const IsOwn& is_own) {
  const FileKind found = kind_of_entry(path, code);
  if (found == FileKind::absent) return "";
  std::string why = path + ": not written by this run";
  if (found == FileKind::regular) {
    try {
      if (file_size(path, code) == 0 || is_own(path)) return "";
    } catch (const Error& error) {
      why = error.what();
    }
  }
  return fmt::format("{}; {} is kept as {}", why, found == FileKind::regular ? "the file" : kind_text(found),
                     free_name(path, code));
}

void clear_own_place(const std::string& path, ExitCode code, const IsOwn& is_own) {
  const std::string warning = foreign_warning(path, code, is_own);
  if (warning.empty()) return;
  set_aside(path, code);
  warn(warning);
}

bool is_denial(std::string_view message) {
  return std::ranges::any_of(std::array{EACCES, EPERM, EROFS},
                             [&](int reason) { return message.ends_with(std::strerror(reason)); });
}

void clear_own_partial(const std::string& partial, ExitCode code) {
  clear_own_place(partial, code, [](const std::string&) { return false; });
}

std::string obstacle_to_renaming(const std::string& path, ExitCode code) {
  const std::string above = directory_of(path);
  try {
    require_possible_directory(above, code);
  } catch (const Error& error) {
    return error.what();
  }
#ifdef STATX_ATTR_MOUNT_ROOT  // Linux 5.8
  if ((attributes_of(above, 0) & STATX_ATTR_APPEND) != 0) return "the directory is append-only, as chattr makes them";
#endif
  struct stat entry {
  }, directory{};
  if (::lstat(path.c_str(), &entry) != 0 || ::stat(above.c_str(), &directory) != 0) return "";
  const uid_t user = ::geteuid();
  if ((directory.st_mode & S_ISVTX) != 0 && user != 0 && user != entry.st_uid && user != directory.st_uid)
    return "another user owns it, and the directory has the sticky bit";
#ifdef STATX_ATTR_MOUNT_ROOT
  const std::uint64_t attributes = attributes_of(path, AT_SYMLINK_NOFOLLOW);
  if ((attributes & STATX_ATTR_MOUNT_ROOT) != 0) return "a file system is mounted there";
  if ((attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND)) != 0)
    return "it is immutable or append-only, as chattr makes files";
#endif
  return "";
}

void require_movable(const std::string& path, ExitCode code) {
  if (kind_of_entry(path, code) == FileKind::absent) return;
  const std::string obstacle = obstacle_to_renaming(path, code);
  if (obstacle.empty()) return;
  throw Error(code, fmt::format("{}: cannot be replaced: {}: undo that, or change run.name", path, obstacle));
}

OwnDirectory::OwnDirectory(const std::string& path, ExitCode code) : path_(path), code_(code) {
  require_own_place(path, FileKind::directory, code);
  directory_ = Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory_.get() < 0) fail_at(code, path, "cannot be opened", errno);
}

OwnDirectory OwnDirectory::make(const std::string& path, ExitCode code) {
  require_own_place(path, FileKind::directory, code);
  make_directories(path, code);
  return {path, code};
}

void OwnDirectory::fail(const std::string& name, const std::string& what, int reason) const {
  fail_at(code_, path_of(name), what, reason);
}

std::vector<std::string> OwnDirectory::list() const {
  // Lists the open directory, whatever its path names now.
  return list_directory(fmt::format("/proc/self/fd/{}", directory_.get()), code_);
}

/// A regular file; whatever else there is is refused without waiting for it.
Descriptor OwnDirectory::open(const std::string& name, int flags) const {
  Descriptor file(
      ::openat(directory_.get(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  const int reason = errno;
  struct stat status {};
  const bool regular = file.get() >= 0 && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
  if (regular) return file;
  if (file.get() >= 0 || reason == ELOOP || reason == EISDIR || reason == ENXIO)
    throw Error(code_, fmt::format("{}: is not a regular file: move it away", path_of(name)));
  fail(name, "cannot be opened", reason);
}

std::string OwnDirectory::read(const std::string& name, std::uint64_t max_bytes) const {
  const Descriptor file = open(name, O_RDONLY);
  std::string text(max_bytes + 1, '\0');
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  if (size < 0) fail(name, "cannot be read", errno);
  if (static_cast<std::uint64_t>(size) > max_bytes)
    throw Error(code_, fmt::format("{}: more than {} bytes", path_of(name), max_bytes));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

bool OwnDirectory::has(const std::string& name) const {
  struct stat status {};
  if (::fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno != ENOENT) fail(name, "cannot be accessed", errno);
  return false;
}

void OwnDirectory::overwrite_start(const std::string& name, const std::string& text) const {
  Descriptor file = open(name, O_WRONLY | O_CREAT);
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && status.st_nlink > 1) {
    remove(name);
    file = open(name, O_WRONLY | O_CREAT | O_EXCL);
  }
  if (!write_whole(file.get(), text)) fail(name, "cannot be written", errno);
  // Some network file systems report only here that a write has failed.
  if (::close(file.release()) != 0 && errno != EINTR) fail(name, "cannot be written", errno);
}

void OwnDirectory::remove(const std::string& name) const {
  struct stat status {};
  if (::fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return;
    fail(name, "cannot be accessed", errno);
  }
  if (!S_ISREG(status.st_mode))
    throw Error(code_, fmt::format("{}: cannot be removed: is not a regular file", path_of(name)));
  if (::unlinkat(directory_.get(), name.c_str(), 0) != 0 && errno != ENOENT) fail(name, "cannot be removed", errno);
}

}  // namespace nanorun
