#include "src/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

namespace nanorun {

namespace {

[[noreturn]] void fail(ExitCode code, const std::string& path, const std::string& what, int reason) {
  throw Error(code, fmt::format("{}: {}: {}", path, what, std::strerror(reason)));
}

/// Opens `path`, applies `call` to the descriptor, and throws with `failure` if that returns non-zero.
template <class Call>
void on_descriptor(const std::string& path, int flags, ExitCode code, const char* failure, Call&& call) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(code, path, "cannot be opened", errno);
  const bool done = call(descriptor) == 0;
  const int reason = errno;
  ::close(descriptor);
  if (!done) fail(code, path, failure, reason);
}

}  // namespace

void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code) {
  on_descriptor(path, O_RDWR | O_CREAT, code, "no space for the file", [&](int descriptor) {
    const int status = ::fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
    return status != 0 && errno == EOPNOTSUPP ? 0 : status;
  });
}

void sync_to_disk(const std::string& path, ExitCode code) {
  on_descriptor(path, O_RDONLY, code, "cannot be flushed to disk", ::fsync);
}

std::uint64_t file_size(const std::string& path, ExitCode code) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) throw Error(code, fmt::format("{}: {}", path, error.message()));
  return size;
}

void rename_file(const std::string& from, const std::string& to, ExitCode code) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(code, from, "cannot be renamed to " + to, errno);
  const auto folder = std::filesystem::path(to).parent_path();
  sync_to_disk(folder.empty() ? "." : folder.string(), code);
}

void replace_text(const std::string& path, ExitCode code, const std::string& text) {
  replace_file(path, code, [&](const std::string& partial) {
    std::ofstream out(partial, std::ios::binary);
    out << text;
    out.close();
    if (!out) fail(code, partial, "cannot be written", errno);
  });
}

FileLock::FileLock(const std::string& path, const std::string& note, ExitCode code)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(code, path, "cannot be opened", errno);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  int status;
  while ((status = ::flock(descriptor_, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (status != 0 && errno == EWOULDBLOCK) {
    std::array<char, 256> text{};
    const ssize_t size = ::pread(descriptor_, text.data(), text.size(), 0);
    held_by_ = std::string(text.data(), std::max<ssize_t>(size, 0));
    return;
  }
  supported_ = status == 0;
  // The note only informs; it may be lost on a full disk.
  if (::ftruncate(descriptor_, 0) == 0) [[maybe_unused]]
    const ssize_t n = ::pwrite(descriptor_, note.data(), note.size(), 0);
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileLock::FileLock(FileLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), supported_(other.supported_), held_by_(other.held_by_) {}

}  // namespace nanorun
