#pragma once
// What a run would begin with, for a dry run: the checkpoint that it continues, or the weights that it takes. The run
// itself chooses by the same functions (run_setup.hpp).

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

/// For one rank, before a run; nothing on disk changes. Lines that begin with "warning: " say why the run would be
/// refused, damage included, or how the model of its first weights differs. Warns on standard error of damaged
/// checkpoints that the run would pass over.
Beginning plan_beginning(const Config& config, const ParameterTable& table);

}  // namespace nanorun
