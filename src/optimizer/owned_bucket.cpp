#include "src/optimizer/owned_bucket.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"

namespace nanorun {

std::vector<Segment> segments_of(const Config& config, const std::vector<OwnedRows>& tensors) {
  std::vector<Segment> segments;
  std::size_t first = 0;
  for (const OwnedRows& rows : tensors) {
    if (rows.size() == 0) continue;
    const Hyperparameters hyper = hyperparameters(config, *rows.parameter);
    if (segments.empty() || segments.back().hyper != hyper) segments.push_back({hyper, first, 0});
    segments.back().size += rows.size();
    first += rows.size();
  }
  return segments;
}

template <class T>
BucketState<T>::BucketState(kernels::WorkspaceAllocator& allocator, const Config& config, const Bucket& bucket,
                            const std::vector<OwnedRows>& tensors, const UpdateRule<T>& rule) {
  if (bucket.fixed()) return;
  std::size_t elements = 0;
  struct Kept {
    std::size_t size = 0;  // of all tensors of the bucket
    bool keeps_fp32 = false;
  };
  std::vector<Kept> all_kept;  // of each state tensor
  for (const OwnedRows& rows : tensors) {
    elements += rows.size();
    const std::vector<StateTensor> kept = rule.state(rows);
    all_kept.resize(kept.size());
    for (std::size_t k = 0; k < kept.size(); ++k) {
      all_kept[k].size += kept[k].rows.size();
      all_kept[k].keeps_fp32 |= kept[k].keeps_fp32;
    }
  }
  // Tensors of one bucket lie together, so all of them must ask for bf16. Learned scalars are fp32 in any case; what
  // the deck wants of them in bf16 are bf16 values in fp32.
  const bool has_choice = !StateSpan<T>::one_type && !bucket.scalars();
  const auto is_narrow = [&](StateFormat Hyperparameters::*format) {
    return has_choice && std::ranges::all_of(tensors, [&](const OwnedRows& rows) {
             return hyperparameters(config, *rows.parameter).*format == StateFormat::bf16;
           });
  };
  const auto take_wide = [&](std::size_t count) -> StateSpan<T> {
    return {{allocator.take<typename StateSpan<T>::Wide>(count), count}};
  };
  const auto take_narrow = [&](std::size_t count) -> StateSpan<T> { return {{}, {allocator.take<T>(count), count}}; };
  if (has_choice && !is_narrow(&Hyperparameters::master)) master = take_wide(elements);
  const bool narrow_moments = is_narrow(&Hyperparameters::moments);
  for (const Kept& kept : all_kept) {
    state.push_back(narrow_moments && !kept.keeps_fp32 ? take_narrow(kept.size) : take_wide(kept.size));
  }
  if (config.optimizer.outer_every > 0) outer = {take_wide(elements).wide, take_wide(elements).wide};
  take_averages(allocator, config, tensors);
}

template <class T>
void BucketState<T>::take_averages(kernels::WorkspaceAllocator& allocator, const Config& config,
                                   const std::vector<OwnedRows>& tensors) {
  for (std::size_t row = 0; row < config.average.size(); ++row) {
    BucketAverage<T> average{row, {}, {}, {}};
    std::size_t begin = 0, taken = 0;  // of a tensor in the part, of what it adds to the values
    for (const OwnedRows& tensor : tensors) {
      const bool rounds = hyperparameters(config, *tensor.parameter).master == StateFormat::bf16;
      for (AveragedRows& covered : averaged_rows(config, config.average[row], tensor)) {
        const std::size_t size = covered.rows.size(), in_part = begin + covered.first;
        const auto* const last = average.runs.empty() ? nullptr : &average.runs.back();
        if (last != nullptr && last->in_part + last->size == in_part && last->rounds == rounds) {
          average.runs.back().size += size;
        } else if (size > 0) {
          average.runs.push_back({in_part, taken, size, rounds});
        }
        taken += size;
        average.tensors.push_back(std::move(covered));
      }
      begin += tensor.size();
    }
    if (average.tensors.empty()) continue;
    average.values = {allocator.take<kernels::acc_t<T>>(taken), taken};
    averages.push_back(std::move(average));
  }
}

template <class T>
void OwnedBucket<T>::round_weights(kernels::Stream stream) const {
  if constexpr (!StateSpan<T>::one_type) {
    if (bucket.scalars() || master.wide.empty()) return;
    for (const Segment& segment : segments) {
      ops::round_to<T>(stream, weights.subspan(segment.first, segment.size),
                       master.wide.subspan(segment.first, segment.size), segment.hyper.truncates);
    }
  }
}

template <class T>
void OwnedBucket<T>::round_state(kernels::Stream stream) const {
  const auto round = [&](const StateSpan<T>& span, StateFormat format, std::size_t first, std::size_t size) {
    if (format == StateFormat::bf16 && !span.wide.empty() && size > 0)
      ops::round_as_bf16<Master>(stream, span.wide.subspan(first, size));
  };
  for (const Segment& segment : segments) round(master, segment.hyper.master, segment.first, segment.size);
  // A state may have fewer elements than its tensor, such as one for each row.
  std::vector<std::size_t> used(state.size());
  auto segment = segments.begin();
  std::size_t first = 0;
  for (const OwnedRows& rows : tensors) {
    if (rows.size() == 0) continue;
    if (first == segment->first + segment->size) ++segment;
    const std::vector<StateTensor> kept = rule->state(rows);
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const std::size_t size = kept[k].rows.size();
      if (!kept[k].keeps_fp32) round(state[k], segment->hyper.moments, used[k], size);
      used[k] += size;
    }
    first += rows.size();
  }
}

template <class T>
void OwnedBucket<T>::round_gradients(kernels::Stream stream) const {
  if constexpr (StateSpan<T>::one_type) {
    if (rounds_gradients) ops::round_as_bf16<T>(stream, all_gradients.wide);
  }
}

template <class T>
void OwnedBucket<T>::begin_outer(kernels::Stream stream) const {
  if (outer.weights.empty()) return;
  master.visit([&]<class E>(std::span<E> masters) { ops::average_weights<E>(stream, outer.weights, masters, 1); });
}

template <class T>
void OwnedBucket<T>::step_outer(kernels::Stream stream, const OptimizerConfig& optimizer) const {
  if (outer.weights.empty()) return;
  master.visit([&]<class E>(std::span<E> masters) {
    ops::outer_nesterov<E>(stream, masters, outer.weights, outer.momentum, optimizer.outer_lr,
                           optimizer.outer_momentum);
  });
  round_state(stream);
  round_weights(stream);
}

NANORUN_INSTANTIATE(struct BucketState);
NANORUN_INSTANTIATE(struct OwnedBucket);

}  // namespace nanorun
