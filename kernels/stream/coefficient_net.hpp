#pragma once
// Coefficient net: a small MLP that gives numbers per token, from which mixes and gates take their coefficients.
//   z = u w_inᵀ,  c = scale (gelu(z) w_outᵀ + bias),  gelu(z) = z Phi(z), exact
// Shapes: u [T, d]; w_in [m, d]; z [T, m]; w_out [n, m]; bias [n]; c [T, n].

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"
#include "kernels/stream/mix.hpp"

namespace nanorun::kernels {

template <class T>
struct CoefficientNet {
  Mat<const T> w_in;
  Mat<const acc_t<T>> w_out;
  Vec<const acc_t<T>> bias;
  double constant = 1;      ///< scale = constant f(scalar)
  LearnedScalar<T> scalar;  ///< without a value, scale = constant
};

template <class T>
struct CoefficientNetGradients {
  Mat<acc_t<T>> d_w_in, d_w_out;  ///< +=
  Vec<acc_t<T>> d_bias;           ///< +=
};

NANORUN_DECLARE_OPS({
  /// Leaves z, the hidden units before gelu, for the backward pass. CUDA: T = bf16, to which z is rounded. The stream
  /// needs create_blas(). Throws std::invalid_argument unless the rows of u, w_in and z are aligned to 16 bytes. Any n
  /// and m; fastest with n <= 48 and m = 8, 16 ... 64.
  template <class T>
  void coefficient_net_forward(Stream stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net);

  /// d_u +=; the gradient of net.scalar +=, unless null. `d_z` [T, m] is scratch.
  /// CUDA: demands what the forward does, aligned rows of d_z too, and a stream with create_sums(). All sums but those
  /// of the GEMMs have a fixed order.
  template <class T>
  void coefficient_net_backward(Stream stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                                Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net);
})

}  // namespace nanorun::kernels
