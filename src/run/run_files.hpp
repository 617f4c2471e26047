#pragma once
// The files that a run writes in its directory, beside its lock and its folders, and how each is told from a user's:
// by the file itself, so that it does not matter which start of the program, or which release, has written it.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "src/config/config.hpp"

namespace nanorun {

struct RunFile {
  const char* name;
  bool grows;  ///< the run appends to it; it replaces the others
  /// Whether nanorun has written the regular file at a path, which is not empty. May throw Error to say why not.
  bool (*is_own)(const std::string& path);
  /// What a start behind so many steps warns of in a file of nanorun's; empty where it is sound. Null: always sound.
  std::string (*warning)(const std::string& path, long first_step) = nullptr;
};

/// In the order in which a start makes their places free.
std::array<RunFile, 6> run_files();

/// run_files() of this name.
RunFile run_file(std::string_view name);

/// Whether a run of the deck writes the file.
bool needs(const Config& config, const RunFile& file);

/// Whether the file is what nanorun has left of writing `file` by way of partial_of() its path, whole or in part.
/// Throws Error where nobody can tell, since the write was cut short.
bool is_own_partial(const RunFile& file, const std::string& partial);

/// The text of a file that an earlier run has left; absent where there is no such file. Throws Error(output), also
/// where the file is too large for one of a run.
std::optional<std::string> text_of_run(const std::string& path);

}  // namespace nanorun
