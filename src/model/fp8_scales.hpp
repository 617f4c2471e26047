#pragma once
// Scales of the operands of a product in 8 bits, by the rules of fp8_rules.hpp. kernels/linear/fp8_scale.hpp derives
// them from largest magnitudes of each layer's operands, which lie in the ops' memory:
//   exact     of this sequence; of weights, of this step
//   delayed   of all sequences of the step before, over all ranks, with a margin; of weights, of the step before
//   fixed     a number that stands in the place of a magnitude
// None depends on the number of ranks. Those that are delayed outlive a step, so checkpoints hold them. Evaluation does
// not quantise.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/block_plan.hpp"
#include "src/model/fp8_rules.hpp"

namespace nanorun {

/// What saturates is counted by these.
enum class Fp8Count { input, weights, hidden, d_out, d_hidden, d_values };
inline constexpr std::size_t fp8_counts = 6;

/// How many of how many elements have saturated, of each Fp8Count.
struct Fp8Saturation {
  std::array<double, fp8_counts> saturated{}, all{};
};

template <class T>
class Fp8ProductScales {
 public:
  using Maximum = kernels::acc_t<T>;
  using Scale = ops::Fp8Scale<Maximum>;

  /// For a new run. Empty where the mode or the deck does not quantise.
  Fp8ProductScales(const Config& config, Fp8Product product, Mode mode, kernels::Stream stream);
  /// Whether the product quantises: else all calls do nothing.
  explicit operator bool() const { return maxima_.size() > 0; }
  bool backward() const { return *this && rules_.backward; }
  kernels::Fp8Format gradient_format() const { return rules_.gradient; }

  /// To be called before each training sequence of a step.
  void begin_sequence(long step);
  /// Where the largest magnitude of a layer's input belongs, which the op that makes the input raises; null where the
  /// scale does not follow it.
  Maximum* largest_input(int layer) const;
  /// The same of the gradient that enters the layer's backward products.
  Maximum* largest_d_out(int layer) const;
  /// The matrices of a layer. MLP: W_in [m d, d], W_out [d, m d]; QKV: w_in [3 d, d], and no w_out.
  struct Matrices {
    kernels::Mat<const T> w_in, w_out;
  };
  /// Measures the matrices of layers [first, first + layers.size()). To be called once a step before the products of
  /// these layers, and again where the matrices have changed (Fp8Weights does).
  void measure(int first, std::span<const Matrices> layers);
  /// How many steps have begun: measure() is due where this has changed.
  long steps_begun() const { return steps_begun_; }
  /// What the products of a layer take.
  struct Layer {
    Scale n, w_in, h, w_out, d_out, d_hidden;
    Maximum *largest_h, *largest_d_hidden;  ///< so far in this rank's sequences of the step: ops raise them
  };
  /// After measure() of the layer.
  Layer of(int layer) const;
  /// Memory for products of scales, which hold for one pass of a layer.
  static constexpr int factors = 16;
  Maximum* factor(int index) const { return factors_.data() + index; }
  /// Where ops count what saturates of `size` elements; null where the rules do not count.
  std::uint64_t* count(Fp8Count of, std::size_t size);

  /// Ends a step: enqueues the copies to the host that share() needs.
  void collect();
  /// Collective. After collect() and once the stream has been waited for: gives all ranks the largest magnitudes of
  /// any, and takes in the counts.
  void share(Comm& comm);
  /// What this rank has counted since the last call, up to the last share().
  Fp8Saturation take_saturation();

  /// Rows of the state: input, hidden, d_hidden, w_in, w_out.
  static constexpr std::size_t state_rows = 5;
  /// What checkpoints hold for the next step [state_rows, layers]: the largest magnitudes that it takes, 0 for those
  /// that no rule delays. Waits for the device. Empty before the first step, and where nothing is delayed.
  std::vector<double> state();
  /// Continues after `step` steps with what state() returned then. A row of zeros, or an empty state, begins as in a
  /// new run. Returns false where the state is that of another number of layers.
  bool restore(long step, std::span<const double> state);

 private:
  /// Rows of the maxima [rows, layers]. Weights have a row for even and one for odd steps. The rows that a step, or a
  /// sequence, begins with are adjacent; so are those that are shared.
  enum Row {
    w_out_even,
    w_in_even,
    input_now,
    d_out_now,
    w_in_odd,
    w_out_odd,
    input_set,
    hidden_set,
    d_hidden_set,
    d_out_set,
    input_found,
    hidden_found,
    d_hidden_found,
    rows
  };
  static constexpr int shared_rows = 3;
  std::span<Maximum> adjacent_rows(int first, int count) const {
    return maxima_.span().subspan(first * layers_, count * layers_);
  }
  std::span<Maximum> row(int index) const { return adjacent_rows(index, 1); }
  std::span<Maximum> w_in(long step) const { return row(step % 2 == 0 ? w_in_even : w_in_odd); }
  std::span<Maximum> w_out(long step) const { return row(step % 2 == 0 ? w_out_even : w_out_odd); }
  const Fp8Rule& shared_rule(int index) const;
  Scale weight(bool delays, std::span<Maximum> now, std::span<Maximum> before, int layer) const;
  bool delays_any() const;
  void upload(std::span<Maximum> to, std::span<const double> values);
  std::vector<double> download(std::span<const Maximum> from);
  std::span<Maximum> host() const { return {reinterpret_cast<Maximum*>(host_.space().data()), shared_rows * layers_}; }
  std::span<std::uint64_t> host_counts() const {
    return {reinterpret_cast<std::uint64_t*>(host_counts_.space().data()), fp8_counts};
  }

  const Config& config_;
  kernels::Stream stream_;
  Fp8Rules rules_;
  std::size_t layers_;
  TensorArena<Maximum> maxima_, factors_;
  TensorArena<std::uint64_t> counts_;
  PinnedArena host_, host_counts_;
  std::vector<double> set_;    ///< the rows input_set to d_hidden_set
  std::vector<bool> adopted_;  ///< of each of them: a step or a checkpoint has given it
  Fp8Saturation saturation_;   ///< since take_saturation()
  double unit_of_set_ = 1;     ///< gradient_unit() of what d_hidden_set was found in
  long step_ = -1;             ///< the step whose weights are measured
  long steps_begun_ = 0;
  std::vector<bool> measured_;  ///< by layer: in this step
  bool follows_last_ = false;   ///< the maxima of the step before are there
};

/// The scales of all products.
template <class T>
class Fp8ScalesOf {
 public:
  Fp8ScalesOf(const Config& config, Mode mode, kernels::Stream stream)
      : mlp(config, Fp8Product::mlp, mode, stream), qkv(config, Fp8Product::qkv, mode, stream), config_(config) {}

  void begin_sequence(long step);
  void collect();
  /// Collective.
  void share(Comm& comm);
  /// [2 state_rows, layers]: the MLP's state, then that of QKV, zeros where one has none. Empty where both are.
  std::vector<double> state();
  bool restore(long step, std::span<const double> state);

  // The rows that the rules of train.mlp_precision = "fp8" have, of hidden units and W_out, in a form of their own
  // [2, layers].

  /// Whether no other row is set.
  bool keeps_two_rows() const { return config_.train.mlp_precision == MlpPrecision::fp8 && !qkv; }
  static std::vector<double> two_rows(std::span<const double> state);
  static std::vector<double> state_of(std::span<const double> two_rows);

  Fp8ProductScales<T> mlp, qkv;

 private:
  static constexpr std::size_t hidden_row = 1, w_out_row = 4;
  const Config& config_;
};

}  // namespace nanorun
