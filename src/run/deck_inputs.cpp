#include "src/run/deck_inputs.hpp"

#include <fmt/format.h>

#include <map>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

namespace {

/// What a start does to files. What cannot be looked at is left to whoever reads it.
class FateOfFiles {
 public:
  explicit FateOfFiles(const Fate& fate) : fate_(fate) {}

  std::string operator()(const std::string& file) {
    std::string found;
    quietly([&] {
      const Folder& folder = look_at(directory_of(file));
      found = folder.fate;
      if (found.empty()) found = fate_(folder.path + "/" + name_of(file));
      if (found.empty() && kind_of_entry(file, ExitCode::usage) == FileKind::symlink) found = fate_on_the_way(file);
    });
    return found;
  }

 private:
  struct Folder {
    std::string path;  ///< without links
    std::string fate;
  };

  /// Many shards lie in few folders.
  const Folder& look_at(const std::string& folder) {
    const auto [found, is_new] = folders_.try_emplace(folder);
    if (is_new) found->second = {canonical_path(folder, ExitCode::usage), fate_on_the_way(folder)};
    return found->second;
  }

  std::string fate_on_the_way(const std::string& path) const {
    std::string found;
    for (const std::string& entry : entries_on_the_way(path, ExitCode::usage)) {
      if (found.empty()) found = fate_(entry);
    }
    return found;
  }

  const Fate& fate_;
  std::map<std::string, Folder> folders_;
};

/// The files that a pattern of shards names, or the path itself.
std::vector<std::string> files_of(const std::string& pattern) {
  std::vector<std::string> files = {pattern};
  quietly([&] {
    if (!exists(pattern, ExitCode::usage)) files = glob_paths(pattern, ExitCode::usage);
  });
  return files;
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

void require_inputs_stay(const Config& config, const Fate& fate) {
  FateOfFiles fate_of(fate);
  for (const auto& [key, patterns] : deck_inputs(config)) {
    for (const std::string& pattern : patterns) {
      for (const std::string& file : files_of(pattern)) {
        const std::string found = fate_of(file);
        if (!found.empty()) throw Error(ExitCode::usage, fmt::format("{}: {} names it, but {}", file, key, found));
      }
    }
  }
}

}  // namespace nanorun
