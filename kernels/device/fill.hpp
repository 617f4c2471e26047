#pragma once
// Elementwise ops on flat tensors [n] and on matrices [rows, cols].

#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// x[i] = value. T may be std::int32_t, too.
  /// CUDA: T = bf16, float, double or std::int32_t.
  template <class T>
  void fill(Stream stream, Vec<T> x, double value);

  /// out[i] = x[i] rounded to T, or truncated to T with `truncates`. Where X is T, `out` may be `x`, and nothing
  /// happens. CUDA: T = bf16 or float; X = T or float.
  template <class T, class X = acc_t<T>>
  void round_to(Stream stream, Vec<T> out, Vec<const std::type_identity_t<X>> x, bool truncates = false);

  /// x[i] = the bf16 nearest to x[i], ties to even. A double is rounded to float first.
  /// CUDA: T = float.
  template <class T>
  void round_as_bf16(Stream stream, Vec<T> x);

  /// out += x
  /// CUDA: T = bf16 or float; rows are whole vectors of 8 elements; else std::invalid_argument.
  template <class T>
  void add(Stream stream, Mat<T> out, Mat<const T> x);
  /// out += x, where x has the accumulators' type.
  template <class T>
  requires(!std::is_same_v<T, acc_t<T>>) void add(Stream stream, Mat<T> out, Mat<const acc_t<T>> x);

  /// out += x, then x = 0
  /// CUDA: T = float. Where x is zero, out is not read.
  template <class T>
  void move_sum(Stream stream, Vec<T> out, Vec<T> x);
})

}  // namespace nanorun::kernels
