#include "src/run/dry_run.hpp"

#include <string>

#include "src/data/run_data.hpp"
#include "src/model/params.hpp"
#include "src/run/first_weights.hpp"
#include "src/run/log.hpp"
#include "src/run/report.hpp"
#include "src/run/run_directory.hpp"

namespace nanorun {

void plan_training(const Config& config, int ranks) {
  check_config(config, ranks);
  require_possible_paths(config);
  const ParameterTable table(config.model);
  std::string text = to_toml(config) + "\n" + plan(config, table, ranks);
  const Beginning beginning = plan_beginning(config, table);
  text += beginning.lines;
  for (const std::string& warning : data_warnings(config, beginning.model)) text += warning + "\n";
  write_output(text);
}

}  // namespace nanorun
