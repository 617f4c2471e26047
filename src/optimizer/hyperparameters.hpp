#pragma once
// How the deck has each tensor updated: by which rule, at which rates.

#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/rule_traits.hpp"
#include "src/optimizer/update_steps.hpp"

namespace nanorun {

/// The rule of all tensors of a group.
Rule rule_of(const Config& config, Group group);

/// What a rule reads of the deck for one tensor. Rates are those before the schedule's factor.
struct Hyperparameters {
  Rule rule = Rule::fixed;
  double lr = 0;
  double beta1 = 0, beta2 = 0;             ///< Adam's
  double decay = 0;                        ///< Adam: as GroupConfig::decay. Muon: optimizer.muon_decay
  StateFormat master = StateFormat::fp32;  ///< fp32 unless takes_master_format()
  StateFormat moments = StateFormat::fp32;
  bool truncates = false;  ///< Muon: bf16 weights that GEMMs read are truncated, not rounded
  UpdateSteps updates{};
  bool operator==(const Hyperparameters&) const = default;
};

/// Whether the masters of a group's tensors have the format that the deck gives: where their rule takes it, and learned
/// scalars that Muon updates.
bool takes_master_format(const Config& config, Group group);

/// Hyperparameters of one tensor: from the first [[group]] with a pattern that matches its name, else from [optimizer].
/// A tied embedding has the formats of the LM head.
Hyperparameters hyperparameters(const Config& config, const Parameter& parameter);

/// At which steps the tensors of a bucket are updated, which is alike for all of them.
UpdateSteps update_steps(const Config& config, const ParameterTable& table, const Bucket& bucket);

/// The parameter table of the deck's model, where a [[group]] may have learned scalars updated by Muon.
ParameterTable parameter_table(const Config& config, int nodes = 1);

/// Throws Error(usage) where a [[group]] asks for Muon on a tensor that it does not update, or gives a period to a
/// tensor that is no lookup table. The message has a line for each such key, with its place in the deck, the first
/// tensor and the number of others.
void check_group_rules(const Config& config);

/// One line for each pattern of a [[group]] that matches no tensor of the model, for example because a mechanism is
/// switched off; and one for each key of Adam's, with another value than its default, of a [[group]] with tensors that
/// Muon updates: betas, decay, and bf16 masters of a tensor whose rule keeps fp32.
std::vector<std::string> group_warnings(const Config& config, const ParameterTable& table);

/// Whether the whole name matches the pattern, in which * stands for any number of any characters.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace nanorun
