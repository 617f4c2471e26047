#pragma once
// What a dry run says of the work and the memory of a run.

#include <string>

#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Parameters, memory per rank, floating-point operations and bytes sent per step.
std::string plan(const Config& config, const ParameterTable& table, int ranks);

}  // namespace nanorun
