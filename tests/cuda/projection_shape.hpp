#pragma once
// Shapes of the QKV projection, and sources of its values, for tests of CUDA implementations.

#include "kernels/attention/attention_projection.hpp"

namespace nanorun::kernels::test {

/// How v' is formed: a fixed factor, interpolation with another tensor or with v itself, another tensor with factor 1,
/// or a row of a table for each token.
/// `as_is`: v itself, in place, without a factor.
enum class Source { none, in_place, as_is, interpolated, itself, unit, table };

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
