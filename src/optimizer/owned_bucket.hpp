#pragma once
// A bucket as one rank sees it: the part that it owns, with masters, gradients and state; and the memory of the whole
// bucket, in which gradients are summed and weights are gathered.

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/averaged_rows.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/optimizer/state_span.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

/// Consecutive elements with the same hyperparameters.
struct Segment {
  Hyperparameters hyper;
  std::size_t first, size;  ///< elements of the owned part
};
/// `tensors`: a rank's rows of each tensor of a bucket.
std::vector<Segment> segments_of(const Config& config, const std::vector<OwnedRows>& tensors);

/// What one rank keeps of an [[average]] for its part of a bucket.
template <class T>
struct BucketAverage {
  /// Consecutive elements of the owned part and of the values.
  struct Run {
    std::size_t in_part, in_values, size;
    bool rounds;  ///< the deck wants the weights in bf16
  };
  std::size_t row = 0;                ///< of Config::average
  std::vector<AveragedRows> tensors;  ///< one after another in the values
  std::vector<Run> runs;
  std::span<kernels::acc_t<T>> values;
};

/// What the outer step keeps of one rank's part of a bucket, empty without optimizer.outer_every
/// (kernels/optimizer/outer_nesterov.hpp).
template <class T>
struct OuterState {
  std::span<kernels::acc_t<T>> weights, momentum;
};

/// Masters, state and averages of one rank's part of a bucket.
template <class T>
struct BucketState {
  StateSpan<T> master;              ///< empty where the weights are their own masters
  std::vector<StateSpan<T>> state;  ///< as UpdateRule::state() lists them, each of all tensors of the bucket
  OuterState<T> outer;
  std::vector<BucketAverage<T>> averages;  ///< those that cover any of its tensors

  /// Takes the memory; only counts where the allocator does. `tensors`: the rank's rows of each tensor.
  BucketState(kernels::WorkspaceAllocator& allocator, const Config& config, const Bucket& bucket,
              const std::vector<OwnedRows>& tensors, const UpdateRule<T>& rule);

 private:
  void take_averages(kernels::WorkspaceAllocator& allocator, const Config& config,
                     const std::vector<OwnedRows>& tensors);
};

template <class T>
struct OwnedBucket {
  using Master = kernels::acc_t<T>;

  Bucket bucket;
  std::size_t index = 0;  ///< among the table's buckets
  UpdateRule<T>* rule = nullptr;
  UpdateSteps updates;             ///< of all its tensors
  Bounds bounds;                   ///< of the parts, relative to Bucket::offset
  std::vector<OwnedRows> tensors;  ///< this rank's rows of each tensor

  // The whole bucket, one span for each kind of memory; empty where it has none of it.
  StateSpan<T> all_gradients;
  std::span<T> all_weights;       ///< what GEMMs and lookups read
  std::span<Master> all_scalars;  ///< learned scalars

  // The owned part. Learned scalars are their own masters; so are weights where T is Master, or where the deck asks for
  // masters in bf16 and T is bf16.
  std::vector<Segment> segments;
  StateSpan<T> gradients;
  bool rounds_gradients = false;  ///< to bf16, also where T is wider (src/model/rounded_gradients.hpp)
  std::span<T> weights;           ///< part of all_weights: the masters in type T
  StateSpan<T> master;
  std::vector<StateSpan<T>> state;  ///< as UpdateRule::state() lists them
  OuterState<T> outer;
  std::vector<BucketAverage<T>> averages;  ///< as of BucketState

  bool updated = false;  ///< in this step, and on its way to the other ranks

  /// A part: its first element, relative to Bucket::offset, and its size.
  std::size_t begin(int part) const { return bounds[part]; }
  std::size_t size(int part) const { return bounds[part + 1] - bounds[part]; }
  /// Makes the weights those of the masters.
  void round_weights(kernels::Stream stream) const;
  /// Rounds to bf16 what the deck wants in bf16 and a wider type holds.
  void round_state(kernels::Stream stream) const;
  /// Rounds gradients that are kept in bf16, after ops that have changed them in a wider type.
  void round_gradients(kernels::Stream stream) const;
  /// Makes the outer weights those of the masters.
  void begin_outer(kernels::Stream stream) const;
  /// An outer step: moves masters, weights and what the step keeps.
  void step_outer(kernels::Stream stream, const OptimizerConfig& optimizer) const;
};

}  // namespace nanorun
