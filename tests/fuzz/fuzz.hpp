#pragma once
// What the fuzz targets share. A target feeds arbitrary bytes to one reader of the program, which may refuse them with
// an Error and nothing else: any other exception, a signal, a hang or an allocation beyond the limit is a finding.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "src/base/error.hpp"
#include "src/comm/context.hpp"

/// The target: runs the reader on one input and returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
/// Starts MPI before the first input.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace nanorun::fuzz {

Comm& comm();

/// An input as a file in memory.
class InputFile {
 public:
  explicit InputFile(std::span<const std::uint8_t> bytes);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Whether the reader took the input. Lets through what is not an Error.
template <class Reader>
bool accepts(Reader&& reader) {
  try {
    reader();
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Ends the program with a message unless the condition holds.
void require(bool condition, const char* message);

}  // namespace nanorun::fuzz
