#pragma once
// How exact the tensor cores' sums of products of 8-bit numbers are, for tests.

#include <cmath>

namespace nanorun::kernels::test {

/// Bound on the relative error, in norm, of a sum of `inner` products in the tensor cores, which keep 13 bits after the
/// leading one. Each addition of 32 products cuts off less than 2^-13 of the sum so far from 33 addends: from the sum
/// half of that on average, always towards zero, and from products of both signs.
inline double sum_norm(int inner) {
  const double additions = inner / 32.0;
  return additions * 0x1p-14 + std::sqrt(33 * additions) * 0x1p-13;
}

}  // namespace nanorun::kernels::test
