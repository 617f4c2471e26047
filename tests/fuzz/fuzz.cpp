#include "tests/fuzz/fuzz.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace nanorun::fuzz {

namespace {
Context* context = nullptr;
}  // namespace

Comm& comm() { return context->comm(); }

// With a name: HDF5 does not open by way of /proc/self/fd a file that has none.
InputFile::InputFile(std::span<const std::uint8_t> bytes) {
  const char* const memory = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  path_ = fmt::format("{}/nanorun-fuzz-XXXXXX", memory);
  const int descriptor = ::mkstemp(path_.data());
  const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
  ::close(descriptor);
  require(written == static_cast<ssize_t>(bytes.size()), "no file in memory for the input");
}

InputFile::~InputFile() { ::unlink(path_.c_str()); }

void require(bool condition, const char* message) {
  if (condition) return;
  std::fprintf(stderr, "finding: %s\n", message);
  std::abort();
}

}  // namespace nanorun::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char*** argv) {
  // The program's name alone: the other arguments are the fuzzer's.
  static int one = 1;
  static nanorun::Context context(one, *argv);
  nanorun::fuzz::context = &context;
  return 0;
}
