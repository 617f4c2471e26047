#pragma once
// Largest magnitudes of matrices, from which the scales of 8-bit operands are computed.

#include <span>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// A matrix x, and where its largest magnitude goes, in the tensors' memory.
template <class T>
struct Magnitude {
  acc_t<T>* maximum = nullptr;
  Mat<const T> x;
};

NANORUN_DECLARE_OPS({
  /// For each entry: *maximum = max(*maximum, |x|) over all elements; NaN does not count.
  /// CUDA: T = bf16; rows are whole 16-byte vectors; else std::invalid_argument.
  template <class T>
  void max_magnitude(Stream stream, std::span<const Magnitude<T>> magnitudes);
})

}  // namespace nanorun::kernels
