#pragma once
// Collectives of buckets, beside computation: reduce-scatters of gradients to their owners, all-gathers of new weights
// to all ranks. With one rank nothing travels. New weights reach the model through the all-gathers alone, on one rank
// too: these note in Weights what has been written.

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/measure/trace.hpp"
#include "src/optimizer/owned_bucket.hpp"
#include "src/optimizer/touched_rows.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class BucketTransfers {
 public:
  /// For `buckets` buckets of the weights. `compute`: the stream of ops. The weights, the communicator and `rows` must
  /// outlive this object.
  BucketTransfers(std::size_t buckets, const Weights<T>& weights, TensorComm& comm, const TouchedRows& rows,
                  kernels::Stream compute);
  ~BucketTransfers();
  BucketTransfers(const BucketTransfers&) = delete;
  BucketTransfers& operator=(const BucketTransfers&) = delete;

  /// Starts to sum a bucket's gradients, as ops enqueued so far leave them, into their owners' parts. If the rows of a
  /// table are known in which the step has gradients, only these rows travel.
  void reduce_scatter(Trace& trace, const OwnedBucket<T>& owned);
  /// Ops enqueued from now on wait for the sums.
  void await_gradients(Trace& trace, const OwnedBucket<T>& owned);
  /// Starts to send the owned weights, as ops enqueued so far leave them, to all ranks.
  void all_gather(Trace& trace, const OwnedBucket<T>& owned);
  /// Ops enqueued from now on wait for the other ranks' weights.
  void await_weights(Trace& trace, const OwnedBucket<T>& owned);
  /// Gives all ranks numbers of which each has written that of its part, [ranks] in memory that was prepared by
  /// TensorComm::share(). Ops enqueued from now on wait for them.
  void all_gather_numbers(Trace& trace, std::span<double> of_parts);
  /// Collective, outside of steps, once the owned weights are complete: every rank gets all weights. Waits for the
  /// device.
  void all_gather_now(const std::vector<OwnedBucket<T>>& buckets);

 private:
  struct Events {
    ops::Event reduced = ops::create_event(), gathered = ops::create_event();
  };
  template <class Collective>
  void transfer(Trace& trace, Phase phase, std::span<const Level> order, ops::Event& done,
                const Collective& collective);
  void await(Trace& trace, Phase phase, const ops::Event& done);
  void gather(Level level, const OwnedBucket<T>& owned);

  const Weights<T>& weights_;
  TensorComm& comm_;
  const TouchedRows& rows_;
  kernels::Stream compute_;
  ops::Event handed_over_ = ops::create_event();  ///< marks what the compute stream hands to the stream of collectives
  ops::Event numbers_gathered_ = ops::create_event();
  std::vector<Events> events_;  ///< by OwnedBucket::index
};

}  // namespace nanorun
