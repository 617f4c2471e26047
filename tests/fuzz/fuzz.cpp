#include "tests/fuzz/fuzz.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace nanorun::fuzz {

namespace {
Context* context = nullptr;
}  // namespace

Comm& comm() { return context->comm(); }

InputFile::InputFile(std::span<const std::uint8_t> bytes)
    : descriptor_(::memfd_create("input", MFD_CLOEXEC)), path_(fmt::format("/proc/self/fd/{}", descriptor_)) {
  const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
  require(written == static_cast<ssize_t>(bytes.size()), "no file in memory for the input");
}

InputFile::~InputFile() { ::close(descriptor_); }

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
