#pragma once
// Cosines and sines of the rotary embedding (RoPE) in one stage of the schedule, for tokens and for the rows of paired
// heads.

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"

namespace nanorun {

template <class T>
class RotaryTable {
 public:
  using Real = kernels::acc_t<T>;

  /// For sequences of up to `length` tokens.
  RotaryTable(const Config& config, int length, kernels::Stream stream);

  /// Fills the table for a stage. Waits for the ops enqueued so far, which may read the table of another stage.
  void set_stage(int stage);
  /// Factor on q kᵀ of each layer in the stage; 0 in layers without attention.
  std::span<const Real> attention_scales() const { return attention_scales_; }
  /// For a sequence of `length` tokens, in layers whose heads attend one by one.
  ops::Rotary<T> rotary(int length) const;
  /// Angles of layers whose heads attend in pairs. Empty without model.paired_layers.
  ops::Rotary<T> paired_rotary(int length) const;

  /// Size of the table.
  static std::size_t bytes(const Config& config, int length);

 private:
  ops::Rotary<T> rows(int count) const;

  const Config& config_;
  kernels::Stream stream_;
  int rows_;
  int pairs_;
  int stage_ = -1;
  std::vector<Real> attention_scales_;
  TensorArena<double> frequencies_;
  TensorArena<Real> table_;  ///< cosines [rows, D/2], then sines
};

}  // namespace nanorun
