#include "src/run/deck_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

namespace {

/// Absolute paths of files. A file's own name may be a link, which stays one.
class EntryPaths {
 public:
  std::string operator()(const std::string& path) {
    const std::string folder = directory_of(path);
    const auto [found, is_new] = folders_.try_emplace(folder);
    if (is_new) found->second = canonical_path(folder, ExitCode::usage);
    return found->second + "/" + name_of(path);
  }

 private:
  std::map<std::string, std::string> folders_;
};

/// Calls refuse(key, file) for the first input of which an absolute path matches: its own, or the one of the file to
/// which it is a link. What cannot be looked at is left to whoever reads it.
void look_at_inputs(const Config& config, const std::function<bool(const std::string& path)>& matches,
                    const std::function<void(const char* key, const std::string& file)>& refuse) {
  EntryPaths entry_path;
  const auto is_match = [&](const std::string& file) {
    bool match = false;
    quietly([&] {
      match = matches(entry_path(file)) || (kind_of_entry(file, ExitCode::usage) == FileKind::symlink &&
                                            matches(canonical_path(file, ExitCode::usage)));
    });
    return match;
  };
  for (const auto& [key, patterns] : deck_inputs(config)) {
    for (const std::string& pattern : patterns) {
      std::vector<std::string> files = {pattern};
      quietly([&] {
        if (!exists(pattern, ExitCode::usage)) files = glob_paths(pattern, ExitCode::usage);
      });
      const auto found = std::ranges::find_if(files, is_match);
      if (found != files.end()) refuse(key, *found);
    }
  }
}

}  // namespace

std::vector<DeckInputs> deck_inputs(const Config& config) {
  std::vector<DeckInputs> inputs = {{"data.train", config.data.train}};
  if (config.validation.tokens > 0) inputs.push_back({"data.validation", config.data.validation});
  if (!config.data.prefix_table.empty()) inputs.push_back({"data.prefix_table", {config.data.prefix_table}});
  const std::string& restart = config.checkpoint.restart;
  if (restart != "auto" && restart != "none") inputs.push_back({"checkpoint.restart", {restart}});
  if (!config.checkpoint.weights.empty()) inputs.push_back({"checkpoint.weights", {config.checkpoint.weights}});
  return inputs;
}

void require_inputs_outside(const Config& config, const std::string& directory) {
  const std::string above = canonical_path(directory, ExitCode::usage) + "/";
  const auto lies_inside = [&](const std::string& path) { return path.starts_with(above); };
  look_at_inputs(config, lies_inside, [&](const char* key, const std::string& file) {
    throw Error(ExitCode::usage, fmt::format("{}: {} names it, but this start would rename {} with all that is in it: "
                                             "move the file out of there, or change run.name",
                                             file, key, directory));
  });
}

void require_inputs_apart(const Config& config, std::span<const std::string> written) {
  EntryPaths entry_path;
  std::vector<std::string> paths;
  std::ranges::transform(written, std::back_inserter(paths), std::ref(entry_path));
  const auto is_written = [&](const std::string& path) { return std::ranges::find(paths, path) != paths.end(); };
  look_at_inputs(config, is_written, [&](const char* key, const std::string& file) {
    throw Error(ExitCode::usage, fmt::format("{}: {} names it, but the run writes a file of this name: move the file "
                                             "elsewhere, or change run.name",
                                             file, key));
  });
}

}  // namespace nanorun
