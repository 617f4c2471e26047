#include "src/bin_file.hpp"

#include <bit>

#include "src/error.hpp"

namespace nanorun {

namespace {

static_assert(std::endian::native == std::endian::little, ".bin files are read as they lie");

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

bool is_bin_file(const std::string& path) {
  const Descriptor file = open_to_read(path, ExitCode::data);
  std::int32_t magic = 0;
  if (file_size(path, ExitCode::data) < sizeof(magic)) return false;
  read_at(file, path, 0, std::as_writable_bytes(std::span(&magic, 1)), ExitCode::data);
  return magic == bin_magic;
}

BinFile::BinFile(const std::string& path) : path_(path), file_(open_to_read(path, ExitCode::data)) {
  const std::uint64_t size = file_size(path, ExitCode::data);
  if (size < sizeof(header_)) fail("{}: {} bytes are too few for the header of a .bin file", path, size);
  read_at(file_, path, 0, std::as_writable_bytes(std::span(header_)), ExitCode::data);
  if (header_[0] != bin_magic) fail("{}: magic {} is not {}: not a .bin file of tokens", path, header_[0], bin_magic);
  if (header_[1] != bin_version) fail("{}: .bin version {} is not {}", path, header_[1], bin_version);
  if (header_[2] < 1) fail("{}: impossible token count {}", path, header_[2]);
  const std::uint64_t expected = sizeof(header_) + sizeof(Token) * count();
  if (size != expected) fail("{}: {} tokens need {} bytes, but the file has {}", path, count(), expected, size);
}

void BinFile::read(std::uint64_t first, std::span<Token> tokens) const {
  read_at(file_, path_, sizeof(header_) + sizeof(Token) * first, std::as_writable_bytes(tokens), ExitCode::data);
}

}  // namespace nanorun
