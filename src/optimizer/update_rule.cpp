#include "src/optimizer/update_rule.hpp"

#include <optional>

#include "src/base/instantiate.hpp"
#include "src/optimizer/rule_adam.hpp"
#include "src/optimizer/rule_muon.hpp"

namespace nanorun {

namespace {

/// The rule of tensors that are not trained: it keeps no state and updates nothing.
template <class T>
class FixedRule final : public UpdateRule<T> {
 public:
  std::vector<StateTensor> state(const OwnedRows&) const override { return {}; }
  void update(const UpdateContext&, std::span<const OwnedBucket<T>* const>, long) override {}
};

template <class T>
std::unique_ptr<UpdateRule<T>> make_rule(Rule rule, const Config& config, kernels::Stream stream) {
  switch (rule) {
    case Rule::muon:
      return std::make_unique<MuonRule<T>>(config);
    case Rule::adam:
      return std::make_unique<AdamRule<T>>(config, stream);
    case Rule::fixed:
      return std::make_unique<FixedRule<T>>();
  }
  throw Error(ExitCode::internal, "an update rule that is not known");
}

}  // namespace

std::vector<std::string> state_prefixes() {
  const Config config;
  const UpdateRules<Real> rules(config);
  std::vector<std::string> all;
  for (const auto& [name, rule] : rules.all()) {
    for (const std::string& prefix : rule->prefixes()) all.push_back(prefix);
  }
  return all;
}

int common_period(const std::vector<Bucket>& buckets, const std::function<int(Group)>& period_of) {
  std::optional<int> common;
  for (const Bucket& bucket : buckets) {
    const int period = period_of(bucket.group);
    if (bucket.group == Group::matrix && period != 1) {
      throw Error(ExitCode::internal, "an update rule of matrices that sums gradients over steps");
    }
    if (!bucket.accumulates()) continue;
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
UpdateRules<T>::UpdateRules(const Config& config, kernels::Stream stream) : config_(config) {
  for (const auto& [rule, name] : all_rules) rules_[rule] = make_rule<T>(rule, config, stream);
}

NANORUN_INSTANTIATE(class UpdateRules);

}  // namespace nanorun
