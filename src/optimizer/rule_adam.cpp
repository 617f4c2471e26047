#include "src/optimizer/rule_adam.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"
#include "src/optimizer/adam_options.hpp"

namespace nanorun {

template <class T>
RuleTraits AdamRule<T>::traits() {
  return {.rule = Rule::adam,
          .name = "adam",
          .title = "Adam",
          .takes_master_format = true,
          .state = {{first_moment}, {second_moment}, {gradient, {"optimizer.adam_period", "group.*.period"}}}};
}

template <class T>
std::string AdamRule<T>::gradient_prefix() const {
  const bool late = std::ranges::any_of(config_.group, [](const GroupConfig& group) { return group.period > 0; });
  return period() > 1 || late ? gradient : "";
}

template <class T>
std::vector<StateTensor> AdamRule<T>::state(const OwnedRows& rows) const {
  return {{first_moment, rows}, {second_moment, rows}};
}

template <class T>
std::size_t AdamRule<T>::adopted_bytes(const ParameterTable& table, int ranks) const {
  return DeferredRows<T>::bytes(config_, table, ranks);
}

template <class T>
void AdamRule<T>::adopt(const ParameterTable& table, const OwnedBucket<T>& owned, int ranks) {
  if (DeferredRows<T>::serves(config_, table, owned.bucket, ranks)) rows_.add(owned);
}

template <class T>
void AdamRule<T>::update(const UpdateContext& context, std::span<const OwnedBucket<T>* const> buckets, long step) {
  for (const OwnedBucket<T>* const owned : buckets) {
    if (owned->gradients.size() == 0) continue;
    Region region(context.trace, Phase::adam);
    update_bucket(context, *owned, step);
  }
}

template <class T>
void AdamRule<T>::update_bucket(const UpdateContext& context, const OwnedBucket<T>& owned, long step) {
  if (rows_.has(owned.bucket)) return rows_.update(owned.bucket, step, context.squares);
  for (const Segment& segment : owned.segments) {
    kernels::AdamOptions options = adam_options(config_, segment.hyper, step);
    // The backward pass overwrites the gradients of the LM head and of matrices, and adds to all others.
    options.clears_gradient = owned.bucket.accumulates() && owned.bucket.group != Group::lm_head;
    const auto part = [&](const auto& all) { return all.subspan(segment.first, segment.size); };
    const auto apply = [&]<class C, class W, class M, class G>(std::span<C> weights, std::span<W> master,
                                                               std::span<M> m, std::span<G> g) {
      ops::adam_update<C, W, M, G>(context.stream, part(master), part(weights), part(m),
                                   part(owned.state[1].template as<M>()), part(g), options, context.squares);
    };
    if (owned.bucket.scalars()) {
      apply(owned.master.wide, owned.master.wide, owned.state[0].wide, owned.gradients.wide);
    } else {
      owned.master.visit([&](auto master) {
        owned.state[0].visit(
            [&](auto m) { owned.gradients.visit([&](auto g) { apply(owned.weights, master, m, g); }); });
      });
    }
  }
}

template <class T>
void AdamRule<T>::read_rows(Trace& trace, const DeviceSequence& sequence, long step) {
  if (rows_.empty()) return;
  Region region(trace, Phase::adam);
  rows_.read(sequence, step);
}

NANORUN_INSTANTIATE(class AdamRule);

}  // namespace nanorun
