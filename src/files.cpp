#include "src/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

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

void rename_file(const std::string& from, const std::string& to, ExitCode code) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(code, from, "cannot be renamed to " + to, errno);
  const auto folder = std::filesystem::path(to).parent_path();
  sync_to_disk(folder.empty() ? "." : folder.string(), code);
}

}  // namespace nanorun
