#include "src/storage/bin_file.hpp"

#include <algorithm>
#include <bit>

#include "src/base/error.hpp"
#include "src/base/foreign_formats.hpp"

namespace nanorun {

namespace {

static_assert(std::endian::native == std::endian::little, ".bin files are read as they lie");

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

/// Recognises variants of .bin files that other programs write. Returns why the file is no .bin file, or an empty text.
std::string known_variant(const BinHeader& header, std::uint64_t size) {
  if (header[1] == bin_version && header[2] >= 1 &&
      size == sizeof(header) + sizeof(std::uint32_t) * static_cast<std::uint64_t>(header[2]))
    return "its tokens have 32 bits: write them as uint16, which holds the ids below 65536";
  if (header[1] == 0 && header[2] == bin_version && header[3] == 0)
    return "the words of its header have 64 bits: write them as int32";
  return "";
}

}  // namespace

std::string head_of_file(const std::string& path) {
  const Descriptor file = open_to_read(path, ExitCode::data);
  std::string head(std::min<std::uint64_t>(known_format_bytes, file_size(path, ExitCode::data)), '\0');
  read_at(file, path, 0, std::as_writable_bytes(std::span(head)), ExitCode::data);
  return head;
}

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
  if (const std::string variant = known_variant(header_, size); !variant.empty()) fail("{}: {}", path, variant);
  if (header_[1] != bin_version) fail("{}: .bin version {} is not {}", path, header_[1], bin_version);
  if (header_[2] < 1) fail("{}: impossible token count {}", path, header_[2]);
  const std::uint64_t expected = sizeof(header_) + sizeof(Token) * count();
  if (size != expected) fail("{}: {} tokens need {} bytes, but the file has {}", path, count(), expected, size);
}

void BinFile::read(std::uint64_t first, std::span<Token> tokens) const {
  read_at(file_, path_, bin_first_byte + sizeof(Token) * first, std::as_writable_bytes(tokens), ExitCode::data);
}

}  // namespace nanorun
