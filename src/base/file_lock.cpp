#include "src/base/file_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

/// Takes a lock, if it is free; `operation` is LOCK_SH or LOCK_EX. Throws Busy where the file system cannot tell now.
LockState take_lock(const Descriptor& file, int operation, const std::string& path, ExitCode code) {
  constexpr int most_refusals = 3;
  for (int refusals = 0;;) {
    if (::flock(file.get(), operation | LOCK_NB) == 0) return LockState::free;
    if (errno == EINTR || errno == ESTALE) fail_by_system(code, path, "cannot be locked", errno);
    if (errno == EWOULDBLOCK) return LockState::held;
    // A server of locks may be short of them for a moment; only a file system without any says so each time.
    if (errno != ENOLCK || ++refusals == most_refusals) return LockState::absent;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

LockState lock_state(const std::string& path, LockKind kind, ExitCode code) {
  const bool exclusive = kind == LockKind::exclusive;
  return take_lock(open_regular(path, exclusive ? O_RDWR : O_RDONLY, code), exclusive ? LOCK_EX : LOCK_SH, path, code);
}

FileLock::FileLock(const std::string& path, const std::string& note, ExitCode code) : path_(path), code_(code) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  const auto is_late = [&] { return std::chrono::steady_clock::now() >= patience; };
  const auto try_now = [&] {
    try {
      return try_lock();
    } catch (const Busy&) {
      if (is_late()) throw;
      return false;
    }
  };
  bool locked;
  while (!(locked = try_now()) && !is_late()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  shared_ = links_of(file_, path_, code_) > 1;
  std::array<char, 256> text{};
  const ssize_t size = ::pread(file_.get(), text.data(), text.size(), 0);
  used_ = size > 0;
  if (!locked) {
    held_by_ = std::string(text.data(), std::max<ssize_t>(size, 0));
    return;
  }
  if (shared_) unshare();
  // The note only informs; it may be lost on a full disk.
  if (::ftruncate(file_.get(), 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), note.data(), note.size(), 0);
}

/// Opens and locks the file that the path names now. False where another process has the lock, or where the file has
/// lost its name meanwhile: another process has replaced it, or removed it at its end, and its lock locks nothing.
bool FileLock::try_lock() {
  file_ = open_regular(path_, O_RDWR | O_CREAT | O_NOFOLLOW, code_);
  const LockState state = take_lock(file_, LOCK_EX, path_, code_);
  if (state == LockState::held) return false;
  supported_ = state == LockState::free;
  return in_place();
}

/// Replaces the shared file, which this process has locked, by a new one that it locks before that has its name. If two
/// processes come by this path, one is first; the other then gets the lock of the shared file and sees that the path
/// names another file (try_lock). A process that works under another name of the shared file holds its lock, so that
/// this one does not get here.
void FileLock::unshare() {
  const std::string fresh = fmt::format("{}.{:08x}", path_, std::random_device()());  // no user's file has this name
  Descriptor own = open_regular(fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, code_);
  try {
    if (supported_ && ::flock(own.get(), LOCK_EX | LOCK_NB) != 0)
      fail_by_system(code_, fresh, "cannot be locked", errno);
    rename_file(fresh, path_, code_);
  } catch (const Error&) {
    quietly([&] { remove_file(fresh, code_); });
    throw;
  }
  file_ = std::move(own);
}

}  // namespace nanorun
