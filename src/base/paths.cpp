#include "src/base/paths.hpp"

#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "src/base/open_file.hpp"

namespace nanorun {

namespace {

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

/// Some file systems, such as /proc, give no sizes.
void require_empty(const std::string& path, ExitCode code) {
  const Descriptor file = open_to_read(path, code);
  if (char byte; ::pread(file.get(), &byte, 1, 0) > 0)
    throw Error(code, path + ": its file system tells no size; copy it to another one");
}

}  // namespace

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

FileKind kind_of_mode(std::uint32_t mode) {
  if (S_ISREG(mode)) return FileKind::regular;
  if (S_ISDIR(mode)) return FileKind::directory;
  return S_ISLNK(mode) ? FileKind::symlink : FileKind::other;
}

FileKind kind_of(const std::string& path, ExitCode code) {
  const std::optional<struct stat> status = look(::stat, path, code);
  return status ? kind_of_mode(status->st_mode) : FileKind::absent;
}

FileKind kind_of_entry(const std::string& path, ExitCode code) {
  const std::optional<struct stat> status = look(::lstat, path, code);
  return status ? kind_of_mode(status->st_mode) : FileKind::absent;
}

bool has_file(const std::string& path, ExitCode code) {
  const FileKind found = kind_of_entry(path, code);
  if (found != FileKind::absent) require_regular(path, found, code);
  return found != FileKind::absent;
}

std::uint64_t file_size(const std::string& path, ExitCode code) {
  const struct stat status = status_of(path, code);
  require_regular(path, kind_of_mode(status.st_mode), code);
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

std::vector<std::string> entries_on_the_way(const std::string& path, ExitCode code) {
  constexpr int max_links = 40;  // Linux follows no more
  std::vector<std::string> entries;
  const std::filesystem::path whole = std::filesystem::path(working_directory(code)) / path;
  std::filesystem::path at = "/";
  std::list<std::filesystem::path> ahead;
  const auto go_ahead_with = [&](const std::filesystem::path& names) {
    const std::filesystem::path relative = names.relative_path();
    ahead.insert(ahead.begin(), relative.begin(), relative.end());
  };
  go_ahead_with(whole);
  for (int links = 0; !ahead.empty();) {
    const std::filesystem::path name = ahead.front();
    ahead.pop_front();
    if (name.empty() || name == ".") continue;
    at = name == ".." ? at.parent_path() : at / name;
    if (name == "..") continue;
    const FileKind found = kind_of_entry(at.string(), code);
    if (found == FileKind::absent) break;
    entries.push_back(at.string());
    if (found != FileKind::symlink) continue;
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(at, error);
    if (error) fail_by_system(code, at.string(), "cannot be read", error.value());
    if (++links > max_links) fail_by_system(code, path, "cannot be found", ELOOP);
    at = target.is_absolute() ? "/" : at.parent_path();
    go_ahead_with(target);
  }
  return entries;
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

}  // namespace nanorun
