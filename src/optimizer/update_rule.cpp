#include "src/optimizer/update_rule.hpp"

#include "src/base/instantiate.hpp"
#include "src/optimizer/rule_adam.hpp"
#include "src/optimizer/rule_muon.hpp"

namespace nanorun {

namespace {

/// For tensors that are not trained.
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

template <class T>
UpdateRules<T>::UpdateRules(const Config& config, kernels::Stream stream) : config_(config) {
  for (int i = 0; i <= static_cast<int>(Rule::fixed); ++i) {
    const auto rule = static_cast<Rule>(i);
    rules_[rule] = make_rule<T>(rule, config, stream);
  }
}

NANORUN_INSTANTIATE(class UpdateRules);

}  // namespace nanorun
