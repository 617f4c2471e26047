#pragma once
// Adam on tables, learned scalars and, where the deck asks for it, matrices (kernels/optimizer/adam.hpp), with one
// launch for each Segment. Rows of lookup tables may wait for their updates (deferred_rows.hpp).

#include "src/optimizer/deferred_rows.hpp"
#include "src/optimizer/owned_bucket.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

template <class T>
class AdamRule final : public UpdateRule<T> {
 public:
  /// First parts of the names of what checkpoints hold.
  static constexpr const char *first_moment = "/adam/m/", *second_moment = "/adam/v/", *gradient = "/adam/gradient/";

  static RuleTraits traits();
  AdamRule(const Config& config, kernels::Stream stream) : config_(config), rows_(config, stream) {}

  std::vector<StateTensor> state(const OwnedRows& rows) const override;
  int period() const override { return config_.optimizer.adam_period; }
  std::string gradient_prefix() const override;
  std::size_t adopted_bytes(const ParameterTable& table, int ranks) const override;
  void adopt(const ParameterTable& table, const OwnedBucket<T>& owned, int ranks) override;
  void update(const UpdateContext& context, std::span<const OwnedBucket<T>* const> buckets, long step) override;

  bool defers(const Bucket& bucket) const override { return rows_.has(bucket); }
  void read_rows(Trace& trace, const DeviceSequence& sequence, long step) override;
  void complete_rows() override { rows_.complete(); }
  void end_step(long step) override { rows_.end_step(step); }
  void restart() override { rows_.restart(); }

 private:
  void update_bucket(const UpdateContext& context, const OwnedBucket<T>& owned, long step);

  const Config& config_;
  DeferredRows<T> rows_;
};

}  // namespace nanorun
