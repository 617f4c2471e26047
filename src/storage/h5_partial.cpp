#include "src/storage/h5_partial.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string_view>

#include "src/base/files.hpp"
#include "src/storage/h5.hpp"
#include "src/storage/h5_library.hpp"

namespace nanorun::h5 {

namespace {

constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";

/// Where the data begins that lies at `at` or behind it in a sparse file; `at` where the file system cannot tell.
std::uint64_t next_data(const Descriptor& file, std::uint64_t at, std::uint64_t size) {
  const off_t found = ::lseek(file.get(), static_cast<off_t>(at), SEEK_DATA);
  if (found >= 0) return static_cast<std::uint64_t>(found);
  return errno == ENXIO ? size : at;
}

/// False also where too much would have to be read to find out.
bool is_all_zeros(const std::string& path, ExitCode code) {
  constexpr std::uint64_t chunk = 1 << 20, most_chunks = 1024;
  const auto file = open_to_read(path, code);
  const std::uint64_t size = file_size(path, code);
  std::string bytes;
  std::uint64_t chunks = 0;
  for (std::uint64_t at = next_data(file, 0, size); at < size; at = next_data(file, at + bytes.size(), size)) {
    if (++chunks > most_chunks) return false;
    bytes.resize(std::min(chunk, size - at));
    read_at(file, path, at, std::as_writable_bytes(std::span(bytes)), code);
    if (bytes.find_first_not_of('\0') != std::string::npos) return false;
  }
  return true;
}

/// Whether the root of a sound HDF5 file has an attribute, or cannot be asked.
bool has_attributes(const std::string& path) {
  const Locked locked;
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) return true;
  const auto stop = [](hid_t, const char*, const H5A_info_t*, void*) -> herr_t { return 1; };
  const herr_t found = H5Aiterate2(file, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, stop, nullptr);
  H5Fclose(file);
  return found != 0;
}

/// Whether a file that HDF5 opens is foreign: it holds what the program does not write, such as links.
bool is_foreign(const File& file, const std::string& path, const std::string& format) {
  bool has_format = false;
  try {
    has_format = file.has_attribute("/", "format");
  } catch (const Error&) {
    return false;  // cut short before its root was written
  }
  try {
    return has_format ? file.format() != format : !file.members("/").empty() || has_attributes(path);
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

bool is_foreign_partial(const std::string& path, const std::string& format, ExitCode code) {
  if (kind_of_entry(path, code) != FileKind::regular) return true;
  if (read_start(path, signature.size(), code) != signature) return !is_all_zeros(path, code);
  try {
    return is_foreign(File::open(path, {}, code), path, format);
  } catch (const Error& error) {
    return error.cause() != Cause::damage;
  }
}

}  // namespace nanorun::h5
