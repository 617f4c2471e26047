#pragma once
// Scales of the operands of the MLP's forward products, with train.mlp_precision = "fp8". kernels/linear/mlp_fp8.hpp
// derives them from the largest magnitudes of each layer's operands, which lie in the ops' memory:
//   n      norm before the MLP: of this sequence
//   W_in   of this step
//   h      hidden units: of all sequences of the step before, over all ranks, with a margin of 1.8; the scale of the
//          first step is 1
//   W_out  of this step up to step 16; later of the step before, with a margin of 1.12
// None depends on the number of ranks. Those of h and W_out outlive a step, so checkpoints hold them. Evaluation does
// not quantise.

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/block_plan.hpp"

namespace nanorun {

template <class T>
class MlpScales {
 public:
  using Maximum = kernels::acc_t<T>;
  using Scale = ops::Fp8Scale<Maximum>;

  /// For a new run. Empty where the mode or the deck's precision does not quantise.
  MlpScales(const Config& config, Mode mode, kernels::Stream stream);
  /// Whether the MLP quantises: else all calls do nothing.
  explicit operator bool() const { return maxima_.size() > 0; }

  /// To be called before each training sequence of a step.
  void begin_sequence(long step);
  /// Largest magnitude of a layer's n, which the op that makes n raises.
  Maximum* largest_n(int layer) const { return &row(n_row)[layer]; }
  /// The matrices of a layer: W_in [m d, d], W_out [d, m d].
  struct Matrices {
    kernels::Mat<const T> w_in, w_out;
  };
  /// Measures the matrices of layers [first, first + layers.size()), in the first sequence of a step. To be called in
  /// each sequence before the products of these layers.
  void measure(int first, std::span<const Matrices> layers);
  /// What the products of a layer take.
  struct Layer {
    Scale n, w_in, h, w_out;
    Maximum* largest_h;  ///< largest magnitude of h so far, in this rank's sequences of the step: the op raises it
  };
  /// After measure() of the layer.
  Layer of(int layer) const;

  /// Ends a step: enqueues the copy to the host that share() needs.
  void collect();
  /// Collective. After collect() and once the stream has been waited for: gives all ranks the largest h of any.
  void share(Comm& comm);

  /// What checkpoints hold for the next step: the maxima of h, then those of W_out [2 layers]. Waits for the device.
  /// Empty before the first step.
  std::vector<double> state();
  /// Continues after `step` steps with what state() returned then; with an empty state as in a new run. Returns false
  /// where the state is that of another number of layers.
  bool restore(long step, std::span<const double> state);

 private:
  /// Rows of the maxima [rows, layers]. W_out has a row for even and one for odd steps. The rows that a step begins
  /// with are adjacent.
  enum Row { w_out_even_row, n_row, w_in_row, w_out_odd_row, h_row, found_h_row, rows };
  std::span<Maximum> adjacent_rows(int first, int count) const {
    return maxima_.span().subspan(first * layers_, count * layers_);
  }
  std::span<Maximum> row(int index) const { return adjacent_rows(index, 1); }
  std::span<Maximum> w_out(long step) const { return row(step % 2 == 0 ? w_out_even_row : w_out_odd_row); }
  void upload(std::span<Maximum> to, std::span<const double> values);
  std::vector<double> download(std::span<const Maximum> from);
  std::span<Maximum> host() const { return {reinterpret_cast<Maximum*>(host_.space().data()), layers_}; }

  kernels::Stream stream_;
  std::size_t layers_;
  TensorArena<Maximum> maxima_;
  PinnedArena host_;      ///< one row
  long step_ = -1;        ///< the step whose weights are measured
  bool first_ = false;    ///< the sequence is the first of its step
  bool delayed_ = false;  ///< W_out takes the scale of the step before
};

}  // namespace nanorun
