#pragma once
// What the operands of the MLP's forward products are scaled by where train.mlp_precision = "fp8": largest magnitudes
// of each layer, in the tensors' memory, from which kernels/linear/mlp_fp8.hpp takes the scales.
//   n      of this sequence
//   W_in   of this step
//   h      of all sequences of the step before, over all ranks, with a margin of 1.8; the scale of the first step is 1
//   W_out  of this step up to step 16; then that of the step before, with a margin of 1.12
// So they do not depend on the number of ranks. The last two outlive a step, and checkpoints hold them. Evaluation does
// not quantise.

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"

namespace nanorun {

template <class T>
class MlpScales {
 public:
  using Maximum = kernels::acc_t<T>;
  using Scale = ops::Fp8Scale<Maximum>;

  /// Those of a new run; of a model that does not quantise in training, nothing.
  MlpScales(const Config& config, bool trains, kernels::Stream stream);
  /// Whether there are any.
  explicit operator bool() const { return maxima_.size() > 0; }

  /// Before a sequence of a step.
  void begin_sequence(long step);
  /// What the norm before a layer's products raises in that sequence.
  Maximum* largest_n(int layer) const { return &row(n_row)[layer]; }
  /// Of a layer.
  struct Matrices {
    kernels::Mat<const T> w_in, w_out;
  };
  /// Before the products of the layers [first, first + layers.size()) in that sequence.
  void measure(int first, std::span<const Matrices> layers);
  /// What they are to take, once measured.
  struct Layer {
    Scale n, w_in, h, w_out;
    Maximum* largest_h;  ///< of this rank's sequences of the step so far
  };
  Layer of(int layer) const;

  /// Enqueues what the host needs at the end of a step.
  void collect();
  /// Collective, once the stream has been waited for after collect(). Ends the step.
  void share(Comm& comm);

  /// What checkpoints hold: h of each layer, then W_out of each layer, for the next step. Waits for the device. Empty
  /// before the first step.
  std::vector<double> state();
  /// Takes over the state after so many steps; if it is empty, as in a new run. False where it is not of this many
  /// layers.
  bool restore(long step, std::span<const double> state);

 private:
  /// Rows of the maxima, a column for each layer. W_out has one for even and one for odd steps. What a step begins with
  /// lies together.
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
  PinnedArena host_;      ///< a row
  long step_ = -1;        ///< whose weights are measured
  bool first_ = false;    ///< sequence of the step
  bool delayed_ = false;  ///< W_out
};

}  // namespace nanorun
