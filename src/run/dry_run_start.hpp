#pragma once
// What a run would begin with, for a dry run: the checkpoint that it continues, or the weights that it takes, and
// whether its directory is free for it. The run itself chooses and looks by the same functions (run_setup.hpp).

#include <optional>
#include <string>
#include <vector>

#include "src/base/error.hpp"
#include "src/config/config.hpp"
#include "src/data/run_data.hpp"
#include "src/model/params.hpp"

namespace nanorun {

struct DryRunStart {
  std::vector<std::string> lines;
  DataStart data;
  std::optional<Error> refusal;  ///< with which the run would end before its first step, whenever it started
};

/// For one rank, before a run on so many ranks; nothing on disk changes. What stands in the way in the run's directory
/// is the refusal. Lines that say why else the run would be refused begin with "warning: ": the files with which it
/// would begin, damage included, disk space that is short now, or another job that uses the directory now. So does a
/// line that says how the model of its first weights differs. Damaged checkpoints that the run would pass over are
/// warned of on standard error.
DryRunStart plan_start(const Config& config, int ranks, const ParameterTable& table);

}  // namespace nanorun
