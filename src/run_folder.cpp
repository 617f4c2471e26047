#include "src/run_folder.hpp"

#include <filesystem>
#include <fstream>

#include "src/error.hpp"
#include "src/files.hpp"

namespace nanorun {

namespace fs = std::filesystem;

namespace {

/// Keeps what an earlier run wrote under the first free number.
void back_up(const fs::path& folder) {
  if (!fs::exists(folder) || fs::is_empty(folder)) return;
  int number = 1;
  while (fs::exists(fmt::format("{}.{}", folder.string(), number))) ++number;
  fs::rename(folder, fmt::format("{}.{}", folder.string(), number));
}

}  // namespace

RunFolder::RunFolder(Comm& comm, const Config& config) : path_(config.run.outputs + "/" + config.run.name) {
  comm.together([&] {
    if (!comm.root()) return;
    try {
      if (config.checkpoint.restart == "none") back_up(path_);
      fs::create_directories(path_);
      // A stop file of the last run would end this one at once.
      fs::remove(stop_file(config.stop));
    } catch (const fs::filesystem_error& error) {
      throw Error(ExitCode::output,
                  fmt::format("cannot prepare the output folder {}: {}", path_, error.code().message()));
    }
    write("deck.toml", to_toml(config));
  });
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  const std::string target = file(name), temporary = target + ".partial";
  std::ofstream out(temporary, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Error(ExitCode::output, "cannot write " + temporary);
  rename_file(temporary, target, ExitCode::output);
}

}  // namespace nanorun
