#pragma once
// Cosines and sines of the rotary embedding in a stage, for tokens and for the rows of paired heads.

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

  /// Makes the tables those of a stage, once the ops enqueued so far have read them.
  void set_stage(int stage);
  /// Factor on q kᵀ in that stage.
  Real attention_scale() const { return attention_scale_; }
  /// For a sequence of `length` tokens.
  ops::Rotary<T> rotary(int length) const;
  ops::Rotary<T> paired_rotary(int length) const;

  static std::size_t bytes(const Config& config, int length);

 private:
  ops::Rotary<T> rows(int count) const;

  const Config& config_;
  kernels::Stream stream_;
  int rows_;
  int pairs_;
  int stage_ = -1;
  Real attention_scale_ = 0;
  TensorArena<double> frequencies_;
  TensorArena<Real> table_;  ///< cosines [rows, D/2], then sines
};

}  // namespace nanorun
