#include "src/optimizer/update_rule.hpp"

#include <algorithm>
#include <optional>

#include "src/base/instantiate.hpp"
#include "src/optimizer/rule_adam.hpp"
#include "src/optimizer/rule_fixed.hpp"
#include "src/optimizer/rule_muon.hpp"

namespace nanorun {

namespace {

template <class... Rules>
struct RuleList {
  static std::vector<RuleTraits> traits() { return {Rules::traits()...}; }

  template <class T>
  static std::map<Rule, std::unique_ptr<UpdateRule<T>>> make(const Config& config, kernels::Stream stream) {
    std::map<Rule, std::unique_ptr<UpdateRule<T>>> rules;
    (rules.emplace(Rules::traits().rule, std::make_unique<Rules>(config, stream)), ...);
    return rules;
  }
};

/// All rules, in the order of enum Rule.
template <class T>
using AllRules = RuleList<MuonRule<T>, AdamRule<T>, FixedRule<T>>;

}  // namespace

std::span<const RuleTraits> all_rules() {
  static const std::vector<RuleTraits> traits = AllRules<Real>::traits();
  return traits;
}

const RuleTraits& traits_of(Rule rule) {
  const auto found = std::ranges::find(all_rules(), rule, &RuleTraits::rule);
  if (found == all_rules().end()) throw Error(ExitCode::internal, "an update rule that AllRules does not list");
  return *found;
}

const StateGroup* state_group_of(std::string_view tensor) {
  for (const RuleTraits& rule : all_rules()) {
    for (const StateGroup& group : rule.state) {
      if (tensor.starts_with(group.prefix)) return &group;
    }
  }
  return nullptr;
}

int common_period(const std::vector<Bucket>& buckets, const std::function<int(Group)>& period_of) {
  std::optional<int> common;
  for (const Bucket& bucket : buckets) {
    const int period = period_of(bucket.group);
    if (bucket.fixed()) continue;
    if (!bucket.accumulates() || bucket.group == Group::scalar_matrix) {
      if (period != 1) throw Error(ExitCode::internal, "an update rule of matrices that sums gradients over steps");
      continue;
    }
    if (common.value_or(period) != period) {
      throw Error(ExitCode::internal, "update rules of tables and scalars with different periods");
    }
    common = period;
  }
  return common.value_or(1);
}

int common_period(const Config& config, const ParameterTable& table) {
  const UpdateRules<Real> rules(config);
  return common_period(table.buckets(), [&](Group group) { return rules.of(group).period(); });
}

template <class T>
double UpdateRule<T>::work(const RankLoad& load) const {
  double elements = 0;
  for (const std::vector<OwnedRows>& bucket : load) {
    for (const OwnedRows& rows : bucket) elements += static_cast<double>(rows.size());
  }
  return elements / period();
}

template <class T>
UpdateRules<T>::UpdateRules(const Config& config, kernels::Stream stream)
    : config_(config), rules_(AllRules<T>::template make<T>(config, stream)) {}

template <class T>
RankLoad UpdateRules<T>::part(const ParameterTable& table, const RankLoad& load, Rule rule) const {
  RankLoad part;
  for (std::size_t i = 0; i < load.size(); ++i) {
    if (rule_of(config_, table.buckets()[i].group) == rule) part.push_back(load[i]);
  }
  return part;
}

NANORUN_INSTANTIATE(class UpdateRule);
NANORUN_INSTANTIATE(class UpdateRules);

}  // namespace nanorun
