#pragma once
// The averages of weights that [[average]] of the deck asks for (kernels/optimizer/average.hpp). A rank averages the
// weights of its own parts, as passes read them, after the updates of a step. At the end of the run the weights of the
// last validation are formed from them; training goes on, in a run with more steps, from the weights before that. So
// checkpoints hold these and the averages, and whoever reads the model of a finished run forms its weights anew
// (src/run/final_weights.hpp).

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/optimizer/owned_bucket.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class Averages {
 public:
  using Master = kernels::acc_t<T>;

  /// Config and buckets outlive it. Ops run on the stream.
  Averages(const Config& config, const std::vector<OwnedBucket<T>>& buckets, kernels::Stream stream)
      : config_(config), buckets_(buckets), stream_(stream) {}

  /// Whether the weights after the update of a step are a sample of any average, and of one that covers rows whose
  /// updates may wait.
  bool due(long step) const;
  bool reads_waiting_rows(long step) const;
  /// Takes the samples of a step, after its updates.
  void sample(long step) const;
  /// Takes the weights as the first sample of one [[average]].
  void begin(std::size_t row) const;

  /// Makes the owned weights those of the finished model. The masters of tensors with masters of their own stay;
  /// others are kept in host memory. Waits for the device.
  void apply();
  /// Makes the masters what they were before apply().
  void take_back();
  /// Bytes that apply() takes on a rank, where ops work on host memory.
  static std::size_t kept_bytes(const Config& config, const RankLoad& load);

 private:
  /// Calls body(weights, average, rounds) for the runs of the average of a row.
  template <class Body>
  void for_runs(std::size_t row, const Body& body) const;
  void take(std::size_t row, double rate) const;
  void keep(const OwnedBucket<T>& owned);

  /// The owned masters of a bucket, in host memory.
  struct Kept {
    const OwnedBucket<T>* owned;
    std::vector<std::byte> masters;
  };

  const Config& config_;
  const std::vector<OwnedBucket<T>>& buckets_;
  kernels::Stream stream_;
  std::vector<Kept> kept_;
};

}  // namespace nanorun
