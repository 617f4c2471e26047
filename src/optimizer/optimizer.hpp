#pragma once
// Muon and Adam over the parameter table. State and update work are sharded, as in ZeRO-1 and Megatron's distributed
// optimizer: of each bucket a rank owns whole units (params.hpp), receives their summed gradients, updates them, and
// all ranks gather the new weights. Collectives run on a stream of their own: gradients travel while the backward pass
// goes on, new weights during the next forward pass, those of tables that are updated early during the backward pass.

#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/base/slab.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/measure/trace.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/muon_blocks.hpp"
#include "src/optimizer/optimizer_rows.hpp"
#include "src/optimizer/optimizer_state.hpp"
#include "src/optimizer/stored_tensors.hpp"
#include "src/optimizer/touched_rows.hpp"
#include "src/optimizer/update_rules.hpp"

namespace nanorun {

/// T: type of the weights that GEMMs read. Gradients are acc_t<T>, and so are masters and state but where the deck asks
/// for bf16 and T is that. Weights are their own masters where both have one type.
template <class T>
class Optimizer {
 public:
  using Master = kernels::acc_t<T>;

  /// Collective. Gradients [table.gradient_size()], weights, `idle` and `rows` outlive the optimizer; the communicator
  /// shares the weights' memory, and ends or is closed before that goes. Muon's scratch lies in `idle` where that
  /// suffices.
  Optimizer(const Config& config, const ParameterTable& table, const Weights<T>& weights, std::span<Master> gradients,
            kernels::Workspace idle, TensorComm& comm, TouchedRows& rows, kernels::Stream stream);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Initial weights on all ranks, and state of zeros.
  void initialise(std::int64_t seed);

  /// Updates once with whatever stands in the gradients, for the ops to have been called. Weights and gradients are
  /// undefined then, the state is zero.
  void warm_up(Trace& trace);

  /// Whether tables and learned scalars still hold gradients of earlier steps before a step, to which it adds its own.
  bool keeps_gradients(long step) const;
  /// Whether the gradients of tables and learned scalars are zero before the other steps, once begin_step() was called.
  bool clears_gradients() const { return comm_.size() == 1 || rows_.known(); }
  /// Before the first gradients of a step: leaves kept sums with the ranks that own them.
  void begin_step(long step);
  /// Before the forward pass of each sequence of a step: brings what it reads of the lookup tables up to date. Rows
  /// that no sequence has read so since the last update must have gradients of zero; any row may have others if this
  /// was never called since then.
  void read_rows(Trace& trace, const DeviceSequence& sequence, long step);
  /// Before the weights are read otherwise than by such sequences. slabs() does it itself.
  void complete_rows();

  /// Begins to sum over the ranks the gradients of a layer (Bucket::layer), which each has summed over its sequences
  /// and which the backward pass has left; and where that leaves the device to the backward pass, updates tables whose
  /// gradients have been under way since the block before. All ranks call it for all layers, from the highest on,
  /// before each step(). `step` counts from 0.
  void start_reduce_scatter(Trace& trace, int layer, long step);

  /// Completes the update and uses the gradients up. Does not wait for the device. Other ranks' weights are complete
  /// after await_weights(), or once the stream of collectives has been waited for.
  void step(Trace& trace, long step);
  /// Makes the ops enqueued from now on wait for the weights of a layer (Bucket::layer).
  void await_weights(Trace& trace, int layer);

  /// Sums of the squares of this rank's part of the gradients, and of the updated weights, since the last collect().
  RunningSum& squares() { return squares_; }
  /// The first of them: of the gradients of the mean loss of a step over all ranks. Ranks own distinct parts, so that
  /// the sum over the ranks is the square of the gradient's norm.
  double gradient_squares() const { return squares_.value(0); }
  /// Whether these sums, together, are not finite, or beyond the largest Master: then norms would be infinite, and what
  /// is divided by them zero, without showing in the loss. Rows of tables that wait for their updates count when they
  /// are next updated.
  bool overflowed() const;

  /// Weights and state of the owned units in host memory, as they are now, for checkpoints: /weights/<name>,
  /// /muon/momentum/<name>, /muon/second_moment/<name>, /adam/m/<name>, /adam/v/<name>, /adam/gradient/<name>, each
  /// where the deck asks for it. What is kept in bf16 is widened, which is exact. Waits for the device.
  std::vector<Slab<Master>> slabs();
  /// The same slabs, whatever stands in them: to be read into.
  std::vector<Slab<Master>> slabs_to_fill();
  /// Takes over what was read into the slabs, rounded where it is kept in bf16, and completes every rank's weights.
  /// `gradients_wait` says whether the gradients among it still wait for Adam's update: they then count in the next
  /// one, at whatever step that comes, else not at all.
  void restore(bool gradients_wait = false);

  /// Bytes of masters, state and scratch on the rank that owns most, with this much idle memory.
  static std::size_t state_bytes(const Config& config, const ParameterTable& table, int ranks, std::size_t idle);

 private:
  /// Consecutive elements of one rule.
  struct Run {
    UpdateRule rule;
    std::size_t first, size;  ///< in the owned part of the bucket
  };
  /// A bucket with this rank's part of masters, gradients and state.
  struct OwnedBucket {
    Bucket bucket;
    Bounds bounds;
    std::vector<OwnedRows> rows;  ///< by tensor
    std::vector<Run> runs;
    std::vector<MuonBlocks> blocks;  ///< of matrices
    std::span<Master> gradients;
    Kept<T> master, moment1, moment2;
    std::span<T> copy;  ///< of the master for the GEMMs; the master itself where it has that type
    ops::Event reduced, gathered;
    bool updated = false;  ///< in this step, and on its way to the other ranks
  };

  OwnedBucket make_owned(const Bucket& bucket, kernels::WorkspaceAllocator& allocator);
  void clear_state();
  std::span<Master> gradients_of(const Bucket& bucket) const;
  bool leaves_others(const Bucket& bucket, bool keeps) const;
  void clear_gradients(const OwnedBucket& owned, bool own_too);
  void reduce(Trace& trace, OwnedBucket& owned);
  template <class Collective>
  void transfer(Trace& trace, Phase phase, ops::Event& done, const Collective& collective);
  void await_gradients(Trace& trace, const OwnedBucket& owned);
  void update_tables(Trace& trace, int lowest_layer, long step);
  void update_matrices(Trace& trace, const Bucket& kind, long step);
  void add_batches(const OwnedBucket& owned, long step);
  void update_elements(Trace& trace, const OwnedBucket& owned, long step);
  void apply_adam(const OwnedBucket& owned, long step);
  void round_kept(const OwnedBucket& owned);
  void round_copy(const OwnedBucket& owned);
  bool tied(long step) const { return config_.model.tied_head && step <= config_.train.untie_step; }
  OwnedBucket& bucket_of(const std::string& table);
  void take_tied_gradients(Trace& trace);
  void copy_tied_weights(long step);
  void publish();
  void gather(Trace& trace, OwnedBucket& owned);
  void gather_weights(const OwnedBucket& owned);
  std::vector<HostKept<T>>& host_views();
  /// Where a bucket's tensors of a checkpoint lie in host_views().
  struct Stored {
    Kept<T> tensor;
    StoredGroup group;
  };
  std::vector<Stored> stored(const OwnedBucket& owned) const;

  const Config& config_;
  const ParameterTable& table_;
  const Weights<T>& weights_;
  std::span<Master> gradients_;
  TensorComm& comm_;
  TouchedRows& rows_;
  kernels::Stream stream_;
  Arena state_, own_workspace_;
  kernels::Workspace workspace_;  ///< Muon's scratch
  RunningSum squares_;            ///< of gradients, and of weights
  LazyRows<T> lazy_;
  bool holds_gradients_ = false;  ///< whether those of tables and scalars are sums of this run, or zero
  bool gradients_wait_ = false;   ///< whether they hold those of restore() for the next update
  ops::Event handed_over_;        ///< from the ops' stream to the collectives'
  std::vector<OwnedBucket> buckets_;
  std::vector<Bucket> kinds_;  ///< of matrices, each one of those alike, in the order of their updates
  std::vector<kernels::MuonBatch<T>> batches_, shape_;  ///< of an update, kept for their memory
  std::vector<HostKept<T>> host_;
};

}  // namespace nanorun
