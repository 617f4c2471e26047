#include "src/storage/h5_partial.hpp"

#include <algorithm>
#include <span>
#include <string_view>

#include "src/base/files.hpp"
#include "src/storage/h5.hpp"

namespace nanorun::h5 {

bool is_foreign_partial(const std::string& path, const std::string& format, ExitCode code) {
  if (kind_of_entry(path, code) != FileKind::regular) return false;
  constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";
  std::string start(std::min<std::uint64_t>(signature.size(), file_size(path, code)), '\0');
  read_at(open_to_read(path, code), path, 0, std::as_writable_bytes(std::span(start)), code);
  if (start.find_first_not_of('\0') == std::string::npos) return false;
  if (start != signature) return true;
  try {
    const File file = File::open(path, {}, code);
    const std::string found = file.format();
    return found != format && (!found.empty() || !file.members("/").empty());
  } catch (const Error& error) {
    return error.cause() != Cause::damage;
  }
}

}  // namespace nanorun::h5
