#pragma once
// The update of all parameters at the end of a step. State and work are sharded, as in ZeRO-1 and Megatron's
// distributed optimizer: of each bucket a rank owns whole units (params.hpp), receives the sums of their gradients,
// updates them by the rule of the bucket (update_rule.hpp), and all ranks gather the new weights. Collectives run
// on a stream of their own (bucket_transfers.hpp): gradients travel while the backward pass goes on, new weights during
// the next forward pass, those of tables that are updated early during the backward pass.

#include <array>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/base/slab.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/measure/trace.hpp"
#include "src/model/gradients.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/averages.hpp"
#include "src/optimizer/bucket_transfers.hpp"
#include "src/optimizer/gradient_clipping.hpp"
#include "src/optimizer/optimizer_slabs.hpp"
#include "src/optimizer/owned_bucket.hpp"
#include "src/optimizer/tied_lm_head.hpp"
#include "src/optimizer/touched_rows.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

/// T: type of the weights that GEMMs read, bf16, float or double. Gradients have the type acc_t<T>, called Master.
/// Masters and moments have that type too, unless T is bf16 and the deck asks for bf16. Where masters and weights have
/// one type they are one tensor.
template <class T>
class Optimizer {
 public:
  using Master = kernels::acc_t<T>;

  /// Collective. `idle`: memory that is free during step(); rules take their scratch from it if it suffices, else the
  /// optimizer allocates some. Config, table, weights, gradients, idle memory, communicator and `rows` outlive the
  /// optimizer. The communicator shares the weights' memory, so it ends or is closed before that memory is released.
  /// Throws Error(internal) where memory is short.
  Optimizer(const Config& config, const ParameterTable& table, const Weights<T>& weights, GradientSpans<T> gradients,
            kernels::Workspace idle, TensorComm& comm, TouchedRows& rows, kernels::Stream stream);

  /// Collective. Sets initial weights on all ranks, and state to zero. Waits for the device.
  void initialise(std::int64_t seed);

  /// Runs each op of an update once, on whatever values the gradients have, so that later steps load no code. Leaves
  /// weights and gradients undefined and state zero.
  void warm_up(Trace& trace);

  /// Steps per update of tables and learned scalars.
  int period() const { return period_; }
  /// Whether the gradients of tables and learned scalars hold sums of earlier steps, to which `step` is to add its own.
  bool keeps_gradients(long step) const;
  /// Whether begin_step() leaves the gradients of tables and learned scalars zero where keeps_gradients() is false.
  bool clears_gradients() const { return comm_.size() == 1 || rows_.known() || has_late_updates_; }
  /// Before the first backward pass of a step: clears gradients to which the step adds. In the first step these are
  /// all, unless a checkpoint has left sums of earlier steps; later those that other ranks own and have already
  /// received.
  void begin_step(long step);
  /// Before the forward pass of each sequence of a step: makes up for deferred updates of the rows of lookup tables
  /// that the sequence reads. Precondition: since the last update only rows that were announced here have gradients
  /// that are not zero. Exception: if no call has been made since the last update, any row may have gradients.
  void read_rows(Trace& trace, const DeviceSequence& sequence, long step);
  /// Makes up for all deferred updates, before anything but the sequences announced by read_rows() reads the weights.
  /// slabs() calls it.
  void complete_rows();

  /// To be called when the backward pass of the last sequence has left a layer (Bucket::layer): all ranks, for all
  /// layers from the highest to -1, before each step(). Starts to sum the layer's gradients over the ranks; each rank
  /// has summed them over its sequences. Also updates tables of higher layers, whose gradients have arrived meanwhile,
  /// unless the transport occupies SMs or gradients are clipped, which takes all of them.
  void start_reduce_scatter(Trace& trace, int layer, long step);

  /// Updates all that start_reduce_scatter() has not updated yet, and uses the gradients up. Does not wait for the
  /// device. Other ranks' weights are complete after await_weights(), or once the stream of collectives has been
  /// waited for. `step` counts from 0.
  void step(Trace& trace, long step);
  /// Ops enqueued from now on wait for the weights of a layer (Bucket::layer).
  void await_weights(Trace& trace, int layer);

  /// After the last step: makes the weights of all ranks those of the finished model (averages.hpp). Collective, waits
  /// for the device. Until take_back_averages() checkpoints cannot be written; after that only they can.
  void apply_averages();
  void take_back_averages() { averages_.take_back(); }

  /// Enqueues copies of what overflowed() and gradient_squares() tell of the updates since the last collect().
  void collect();
  /// The collected sum of squares of this rank's part of the gradients of the step's mean loss over all sequences,
  /// before they are clipped. Ranks own distinct parts, so the sum over the ranks is the square of the gradient's norm.
  double gradient_squares() const { return clipping_ ? clipping_.squares() : squares_.value(0); }
  /// Whether gradients or new weights are not finite, or so large that the sum of the collected sums of both exceeds
  /// the largest Master. A norm would then be infinite and quotients by it zero, which no loss would show. Rows with
  /// deferred updates count when they are updated.
  bool overflowed() const;

  /// Masters and state of the owned parts in host memory, for checkpoints: /weights/<name>, and for the state that the
  /// rule of the tensor keeps /muon/momentum/<name>, /muon/second_moment/<name>, /adam/m/<name>, /adam/v/<name>,
  /// /adam/gradient/<name>; /outer/weights/<name>, /outer/momentum/<name>, /average/<row>/<name>. bf16 values are
  /// widened, which is exact. Waits for the device.
  std::vector<Slab<Master>> slabs();
  /// slabs() with undefined values, to be filled and then taken over by restore().
  std::vector<Slab<Master>> slabs_to_fill() { return slabs_.slabs(); }
  /// What slabs are worth beside weights and state.
  struct Restored {
    bool gradients_wait = false;   ///< the gradients count in the next update, at whatever step it comes; else dropped
    bool late_sums_wait = false;   ///< those of tables with two periods do; each update has cleared them
    std::vector<bool> averages{};  ///< by row of [[average]]: begins with the restored weights, whatever its slabs hold
  };
  /// Collective. Takes over the values of the slabs, rounded where they are kept in bf16, and gives every rank all
  /// weights.
  void restore(const Restored& restored);
  void restore() { restore(Restored{}); }

  /// Bytes of device memory that the optimizer takes on the rank that needs most, with `idle` bytes of idle memory.
  static std::size_t state_bytes(const Config& config, const ParameterTable& table, const NodeLayout& layout,
                                 std::size_t idle);

 private:
  using Owned = OwnedBucket<T>;

  StateSpan<T> gradients_of(const GradientSpans<T>& gradients, const Bucket& bucket) const;
  std::vector<Owned> own_buckets(const GradientSpans<T>& gradients);
  Owned own(const Bucket& bucket, const GradientSpans<T>& gradients, kernels::WorkspaceAllocator& allocator);
  std::vector<std::vector<const Owned*>> shape_batches() const;
  void clear_state();
  void initialise(const Owned& owned, std::int64_t seed);
  bool leaves_others(const Bucket& bucket, long step) const;
  enum class Parts { all, of_other_ranks };
  void clear_gradients(const Owned& owned, Parts parts);
  void update_tables(Trace& trace, int lowest_layer, long step);
  bool tied_at(long step) const;
  void step_outer(Trace& trace);
  void sample_averages(Trace& trace, long step);
  void take_tied_gradients(Trace& trace);
  void clip_gradients(Trace& trace, long step);
  void update(Trace& trace, std::span<const Owned* const> buckets, long step);
  UpdateContext context(Trace& trace) { return {trace, stream_, scratch_, squares_.device()}; }
  void refresh_weights();

  const Config& config_;
  const ParameterTable& table_;
  const Weights<T>& weights_;
  TensorComm& comm_;
  TouchedRows& rows_;
  kernels::Stream stream_;
  UpdateRules<T> rules_;
  Arena state_, own_scratch_;
  kernels::Workspace scratch_;  ///< scratch of the rules
  RunningSum squares_;          ///< squared norms of gradients as updates take them, and of weights
  std::vector<Owned> buckets_;  ///< in the order in which the backward pass completes them; never changes
  std::vector<std::vector<const Owned*>> batches_;  ///< per rule that batches shapes, in the order of updates
  BucketTransfers<T> transfers_;
  GradientClipping<T> clipping_;
  TiedLmHead<T> tied_lm_head_;
  Averages<T> averages_;
  OptimizerSlabs<T> slabs_;
  int period_;
  bool has_late_updates_;         ///< a bucket has two periods
  bool holds_gradients_ = false;  ///< gradients of tables and scalars are sums of this run's steps, or zero
  bool gradients_wait_ = false;   ///< gradients of restore() wait for the next update
  bool late_sums_wait_ = false;   ///< those of tables with two periods do
};

}  // namespace nanorun
