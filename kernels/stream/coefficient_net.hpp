#pragma once
// Coefficient net: a small MLP that gives numbers per token, from which mixes and gates take their coefficients.
//   z = u w_inᵀ,  c = scale (gelu(z) w_outᵀ + bias),  gelu(z) = z Phi(z), exact
// Shapes: u [T, d]; w_in [m, d]; z [T, m]; w_out [n, m]; bias [n]; c [T, n].

#include "kernels/device/types.hpp"
#include "kernels/stream/mix.hpp"

namespace nanorun::kernels::portable {

template <class T>
struct CoefficientNet {
  Mat<const T> w_in;
  Mat<const acc_t<T>> w_out;
  Vec<const acc_t<T>> bias;
  double constant = 1;      ///< scale = constant * learned scalar
  LearnedScalar<T> scalar;  ///< without a value it is 1
};

template <class T>
struct CoefficientNetGradients {
  Mat<acc_t<T>> d_w_in, d_w_out;  ///< +=
  Vec<acc_t<T>> d_bias;           ///< +=
};

/// `z`, before gelu, is what the backward pass needs.
template <class T>
void coefficient_net_forward(Stream stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net);

/// d_u +=; the scalar's gradient +=, where wanted. `d_z` [T, m] is scratch.
template <class T>
void coefficient_net_backward(Stream stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                              Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

using portable::CoefficientNet;
using portable::CoefficientNetGradients;

/// T = bf16, z and d_z rounded to it. The stream needs create_blas(). Throws std::invalid_argument unless the rows of
/// u, w_in, z and d_z are aligned to 16 bytes. Any n and m; fastest with n <= 48 and m = 8, 16 ... 64.
template <class T>
void coefficient_net_forward(Stream stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net);

/// All sums but those of the GEMMs have a fixed order. The stream needs create_sums(), too.
template <class T>
void coefficient_net_backward(Stream stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                              Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net);

}  // namespace nanorun::kernels::cuda
