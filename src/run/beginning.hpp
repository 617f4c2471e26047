#pragma once
// With what a run would begin, for a dry run: the checkpoint that it continues, or the weights that it takes. The run
// chooses by the same functions (run_setup.hpp).

#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/run_data.hpp"
#include "src/model/params.hpp"

namespace nanorun {

struct Beginning {
  std::vector<std::string> lines;
  DataStart data;
};

/// For one rank, before a run; nothing on disk changes. Lines begin with "warning: " that say why the run would be
/// refused, damage included, or how the model of its first weights differs. Damaged checkpoints that the run would pass
/// over are warned of on standard error.
Beginning plan_beginning(const Config& config, const ParameterTable& table);

}  // namespace nanorun
