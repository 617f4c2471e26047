#pragma once
// What each update rule states of itself, whatever the model and the type of its weights. rule_<name>.cpp defines the
// traits of a rule; update_rule.cpp has the list of all rules.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

struct Hyperparameters;

/// Update rules. Each has a class of its own, see update_rule.hpp. Rule::fixed never updates.
enum class Rule { muon, adam, fixed };

/// A group of tensors that a rule may keep in checkpoints: state, or gradients summed over steps.
struct StateGroup {
  std::string prefix;  ///< first part of their names, such as "/adam/m/"; the parameter's name follows
  /// Keys of the deck (patterns of matches()) that decide whether the tensors exist, or their shapes. A key of the
  /// model stands here only where the parameters themselves do not depend on it. Empty: the tensors always exist, in
  /// the shapes of their parameters.
  std::vector<std::string> keys{};
};

struct RuleTraits {
  Rule rule = Rule::fixed;
  std::string name;   ///< in plans: "muon"
  std::string title;  ///< in messages: "Muon"
  /// Whether masters have the format that the deck gives; else they are fp32.
  bool takes_master_format = false;
  std::vector<StateGroup> state{};
  /// Sets what this rule alone reads of the deck for a tensor; null: nothing.
  void (*read)(const Config& config, Hyperparameters& hyper) = nullptr;
};

/// Those of all rules, in the order of their values.
std::span<const RuleTraits> all_rules();
const RuleTraits& traits_of(Rule rule);

/// The group of a tensor of checkpoints by its name; null where it is of no rule.
const StateGroup* state_group_of(std::string_view tensor);

}  // namespace nanorun
