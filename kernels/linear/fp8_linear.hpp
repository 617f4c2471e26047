#pragma once
// Linear layers whose operands are 8-bit numbers, in the forward pass or in both, and the squared-relu layer between
// two of them. An operand a is quantised once, by a scale s for the whole tensor (fp8_scale.hpp), and serves several
// products:
//   aq = F(f a / s),  F = e4m3 or e5m2,  f a factor or 1
//   out = s_x s_w xq wqᵀ,  d_x = s_g s_w gq wq,  d_w = s_g s_x gqᵀ xq
// with the gradient g of out. Behind the first of the MLP's two layers, with the scale s_h of h and s_d of d_z:
//   h = relu(s_x s_w xq wqᵀ)²,  hq = e4m3(h / s_h)
//   d_z = 2 (s_g s_v gq vq) ∘ sqrt(s_h hq),  dq = F(d_z / s_d),  where out = h vᵀ and g is its gradient
// h and d_z exist as hq and dq alone, but for h where the backward pass is that of matmul.hpp: their scales are those
// of an earlier step, while their largest magnitudes are found on the way. Products take the scales multiplied, from
// memory: fp8_quantise computes them.
// Shapes: x [M, K]; w [N, K]; out, g, h, d_z [M, N]; v [K', N].
//
// An element saturates where rounding without a bound would give more than the format's largest. Portable
// implementations emulate the rounding and round nothing else; they compute a / s as the product of a and 1 / s in
// fp32.

#include <span>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"
#include "kernels/linear/fp8_scale.hpp"

namespace nanorun::kernels {

/// The order in which a matrix has its rows on CUDA. Where they are the columns of a product with a fused epilogue,
/// each 32 of them are permuted.
enum class Fp8Rows { plain, fused };

/// q = F(*factor x / s), q_t = qᵀ.
template <class T>
struct Fp8Quantisation {
  Mat<const T> x{};
  Mat<Fp8<T>> q{}, q_t{};  ///< null where not wanted
  Fp8Scale<acc_t<T>> scale{};
  Fp8Format format = Fp8Format::e4m3;
  const acc_t<T>* factor = nullptr;    ///< null: 1
  std::uint64_t* saturated = nullptr;  ///< += the elements that saturate; in the tensors' memory; null: not counted
  Fp8Rows rows = Fp8Rows::plain;       ///< of q
  Fp8Rows rows_t = Fp8Rows::plain;     ///< of q_t
};

/// *to = the scale a, times the scale b where that has a maximum; or 1 / a with `inverse`.
template <class A>
struct Fp8Factor {
  A* to = nullptr;
  Fp8Scale<A> a{}, b{};
  bool inverse = false;
};

/// What an epilogue that quantises its result takes and finds, in the tensors' memory.
template <class A>
struct Fp8Result {
  const A* inverse = nullptr;          ///< 1 / s of the result
  A* maximum = nullptr;                ///< = max(itself, magnitudes of the result before it is quantised)
  std::uint64_t* saturated = nullptr;  ///< += the elements that saturate; null: not counted
};

// CUDA: T = bf16. Sums of products have about 14 bits, as the tensor cores' 8-bit GEMMs keep them; those of
// fp8_linear_backward_input and _weight are added up in fp32 after each 128 or fewer. Results are rounded once. Throws
// std::invalid_argument unless N, K and K' are multiples of 128 and rows are whole 16-byte vectors; and M too, but for
// the forward products and for matrices that fp8_quantise does not transpose.
NANORUN_DECLARE_OPS({
  /// Quantises all entries, and computes all factors.
  template <class T>
  void fp8_quantise(Stream stream, std::span<const Fp8Quantisation<T>> quantisations,
                    std::span<const Fp8Factor<acc_t<T>>> factors);

  /// d_x = or += *factor gq wq, with w_t = wqᵀ of e4m3 in Fp8Rows::plain. CUDA: needs a stream with create_blas().
  template <class T>
  void fp8_linear_backward_input(Stream stream, Mat<T> d_x, Mat<const Fp8<T>> gq, Fp8Format format,
                                 Mat<const Fp8<T>> w_t, const acc_t<T>* factor, Output output = Output::overwrite);

  /// Bytes of workspace for fp8_linear_backward_weight of d_w [rows, cols] or its transpose, over `inner` rows.
  template <class T>
  std::size_t fp8_linear_backward_weight_workspace(int rows, int cols, int inner);

  /// d_w = or += *factor aᵀ b, with b_t = bᵀ; with `transposes` its transpose. One of a and b is gq, the other e4m3.
  /// Shapes: a [M, rows], b_t [cols, M]; d_w [rows, cols], with `transposes` [cols, rows].
  template <class T>
  void fp8_linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, bool transposes, Mat<const Fp8<T>> a,
                                  Fp8Format format_a, Mat<const Fp8<T>> b_t, Fp8Format format_b, const acc_t<T>* factor,
                                  Output output, Workspace workspace);
})

NANORUN_DECLARE_TIERED_OPS({
  /// out = or += *factor xq wqᵀ. xq, wq: e4m3; wq in Fp8Rows::fused.
  template <class T>
  void fp8_linear_forward(Stream stream, Mat<T> out, Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                          Output output = Output::overwrite);

  /// hq of h = relu(*factor xq wqᵀ)², and h itself where that is not null; then hq may be null. wq in Fp8Rows::fused.
  /// CUDA: with h, the maximum is that of the rounded h. hq is rounded once, from fp32.
  template <class T>
  void fp8_relu2_forward(Stream stream, Mat<Fp8<T>> hq, const Fp8Result<acc_t<T>>& result, Mat<const Fp8<T>> xq,
                         Mat<const Fp8<T>> wq, const acc_t<T>* factor, Mat<T> h = {});

  /// dq of d_z = 2 (*factor gq vq) ∘ sqrt(*scale_h hq), with v_t = vqᵀ of e4m3 in Fp8Rows::fused; dq and gq have the
  /// format.
  template <class T>
  void fp8_relu2_backward(Stream stream, Mat<Fp8<T>> dq, const Fp8Result<acc_t<T>>& d_z, Mat<const Fp8<T>> gq,
                          Fp8Format format, Mat<const Fp8<T>> v_t, const acc_t<T>* factor, Mat<const Fp8<T>> hq,
                          const acc_t<T>* scale_h);
})

}  // namespace nanorun::kernels
