#pragma once
// Shapes of the QKV projection, and sources of its values, for tests of CUDA implementations.

#include "kernels/attention/attention_projection.hpp"

namespace nanorun::kernels::test {

/// How v' is formed: a fixed factor, interpolation with another tensor or with v itself, another tensor with factor 1,
/// or a row of a table for each token.
/// `as_is`: v itself, in place, without a factor.
enum class Source { none, in_place, as_is, interpolated, itself, unit, table };

/// The value residual of such a source. `qkv` is what the projection writes.
template <class T>
ValueResidual<T> residual_of(Source source, const acc_t<T>* lambda, Mat<T> qkv, Mat<const T> u, const Token* tokens) {
  const int width = qkv.cols / 3;
  ValueResidual<T> residual{.lambda = source == Source::as_is ? nullptr : lambda,
                            .interpolate = source == Source::interpolated || source == Source::itself,
                            .unit_source = source == Source::unit};
  residual.in_place = source == Source::in_place || source == Source::as_is;
  if (source == Source::itself) {
    residual.source = qkv.col_block(2 * width, width);
  } else if (source != Source::none && !residual.in_place) {
    residual.source = u;
  }
  if (source == Source::table) residual.index = tokens;
  return residual;
}

struct ProjectionShape {
  int rows = 1, in = 64, heads = 1, pad = 0;  ///< rows of qkv lie `pad` elements further apart than they must
  bool paired = false, key_offset = false, bias = false;
  int head_dim = 128;
  int live_pairs = 0, still_from = 0;
  bool norms = true;

  template <class T>
  Rotary<T> rotary(Mat<const float> cos, Mat<const float> sin) const {
    return {heads, cos, sin, paired, key_offset, live_pairs, still_from, norms};
  }
};

}  // namespace nanorun::kernels::test
