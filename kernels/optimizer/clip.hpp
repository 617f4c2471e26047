#pragma once
// Clipping of gradients by their global norm (Pascanu, Mikolov and Bengio 2013, arXiv:1211.5063):
//   |g| = sqrt(sum of (gradient_scale g)² over all tensors),  g = min(1, c / |g|) g
// Several ranks, or tensors, first add up squares, then form one factor from all sums, then scale. The factor stays in
// the tensors' memory.

#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// *sum += sum of (gradient_scale g)² over g [n], squares and sum in double; not finite if any element is not. `sum`
  /// lies in the tensors' memory.
  /// CUDA: A = float or bf16. The sum has a fixed order. The stream needs create_sums().
  template <class A>
  void add_squares(Stream stream, double* sum, Vec<const A> g, double gradient_scale);

  /// *factor = min(1, c / sqrt(sum of squares [n])), or 1 where the sum is not finite, so that gradients that are not
  /// finite stay so. The order of the sum depends on n alone. All lie in the tensors' memory.
  /// CUDA: A = float.
  template <class A>
  void clip_factor(Stream stream, A * factor, Vec<const double> squares, double c);

  /// g = *factor g, for g [n], rounded to A. Where *factor is 1, g is neither read nor written.
  /// CUDA: A = float or bf16.
  template <class A>
  void scale_gradients(Stream stream, Vec<A> g, const acc_t<A>* factor);
})

}  // namespace nanorun::kernels
