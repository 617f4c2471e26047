#pragma once
// How a dry run shows the plan of a run.

#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/run/training_plan.hpp"

namespace nanorun {

/// For people: a line for each figure.
std::string plan_text(const Config& config, const ParameterTable& table, const TrainingPlan& plan);

/// For programs: JSON with the figures of the plan, the resolved deck, the tensors of the model with the buckets in
/// which they travel, and `remarks`. Remarks that begin with "warning: " are listed as warnings. docs/running.md
/// describes the fields.
std::string plan_json(const Config& config, const ParameterTable& table, const TrainingPlan& plan,
                      const std::vector<std::string>& remarks);

}  // namespace nanorun
