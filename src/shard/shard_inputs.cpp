// Finds the input files of nanorun shard, which the command line and a list name.

#include <algorithm>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/foreign_formats.hpp"
#include "src/shard/shard.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t max_list_bytes = std::uint64_t{1} << 26;  ///< millions of paths

/// The lines of a list. On other systems a text may begin with a byte order mark, and its lines end in CR and LF.
std::vector<std::string> listed_files(const std::string& list) {
  const std::string text = read_input(list, max_list_bytes, ExitCode::usage);
  const auto refuse = [&](const std::string& reason) {
    throw Error(ExitCode::usage, fmt::format("{}: {}", list, reason));
  };
  const std::string known = known_format(std::string_view(text).substr(0, known_format_bytes));
  if (!known.empty()) refuse(known);
  if (text.find('\0') != text.npos) refuse("holds zero bytes; a list is text with one file per line");
  std::vector<std::string> files;
  std::size_t begin = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string file = text.substr(begin, end - begin);
    if (file.ends_with('\r')) file.pop_back();
    if (!file.empty()) files.push_back(std::move(file));
    begin = end + 1;
  }
  if (files.empty()) refuse("the list names no files");
  return files;
}

/// Adds the file; if it is a pattern that no shell has expanded, adds the files that match it.
void add_files(const std::string& file, std::vector<std::string>& files) {
  if (file.find_first_of("*?[") == file.npos || exists(file, ExitCode::data)) {
    files.push_back(file);
    return;
  }
  const std::vector<std::string> matches = glob_paths(file, ExitCode::data);
  if (matches.empty()) throw Error(ExitCode::data, file + ": no file matches this pattern");
  files.insert(files.end(), matches.begin(), matches.end());
}

}  // namespace

std::vector<std::string> find_inputs(Comm& comm, const ShardOptions& options) {
  std::string joined;
  comm.together([&] {
    if (!comm.root()) return;
    std::vector<std::string> named = options.inputs, files;
    if (!options.list.empty()) {
      const std::vector<std::string> listed = listed_files(options.list);
      named.insert(named.end(), listed.begin(), listed.end());
    }
    for (const std::string& file : named) add_files(file, files);
    for (const std::string& file : files) joined += file + '\0';
  });
  joined = comm.broadcast(joined);
  std::vector<std::string> files;
  for (std::size_t at = 0; at < joined.size(); at += files.back().size() + 1) files.emplace_back(&joined[at]);
  return files;
}

}  // namespace nanorun
