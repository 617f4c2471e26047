#pragma once
// The rule of tensors that are not trained: it keeps no state and updates nothing.

#include "src/optimizer/update_rule.hpp"

namespace nanorun {

template <class T>
class FixedRule final : public UpdateRule<T> {
 public:
  static RuleTraits traits() {
    return {.rule = Rule::fixed, .name = "fixed", .title = "no rule", .takes_master_format = true};
  }
  FixedRule(const Config&, kernels::Stream) {}

  std::vector<StateTensor> state(const OwnedRows&) const override { return {}; }
  double work(const RankLoad&) const override { return 0; }
  void update(const UpdateContext&, std::span<const OwnedBucket<T>* const>, long) override {}
};

}  // namespace nanorun
