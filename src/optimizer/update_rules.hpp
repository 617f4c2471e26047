#pragma once
// How the optimizer updates each tensor, from the deck.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Rates of a tensor, before the schedule's factor. Adam's: beta1, beta2, and the formats, which are fp32 with Muon.
/// Decay as GroupConfig::decay, of Muon in units of optimizer.muon_lr.
struct UpdateRule {
  double lr = 0;
  double beta1 = 0, beta2 = 0;
  double decay = 0;
  StateFormat master = StateFormat::fp32, moments = StateFormat::fp32;
  bool truncates = false;  ///< bf16 weights that GEMMs read are truncated, not rounded
  bool operator==(const UpdateRule&) const = default;
};
UpdateRule update_rule(const Config& config, const Parameter& parameter);

/// What Adam does at a step with an update to the tensors of a rule. It clears their gradients, where the caller does
/// not ask otherwise.
kernels::AdamOptions adam_options(const Config& config, const UpdateRule& rule, long step);

/// A line for each name in a [[group]] that describes no tensor of the model, as a mechanism may be switched off; and
/// for each [[group]] that asks for another format of what Muon keeps.
std::vector<std::string> group_warnings(const Config& config, const ParameterTable& table);

/// Rows of the blocks in which Muon orthogonalises one of a tensor's matrices.
int muon_block_rows(const Config& config, const Parameter& parameter, int matrix);

/// Whether `pattern`, in which * stands for any characters, describes all of `name`.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace nanorun
