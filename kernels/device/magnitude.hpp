#pragma once
// Largest magnitudes of matrices, which scales of 8-bit operands come from.

#include <span>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// A matrix, and the maximum that it raises, in the tensors' memory.
template <class T>
struct Magnitude {
  acc_t<T>* maximum = nullptr;
  Mat<const T> x;
};

/// For each: *maximum = max(*maximum, |x|) over all elements; NaN does not count.
template <class T>
void max_magnitude(Stream stream, std::span<const Magnitude<T>> magnitudes);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

using portable::Magnitude;

/// T = bf16. Throws std::invalid_argument unless rows are whole, aligned 16-byte vectors.
template <class T>
void max_magnitude(Stream stream, std::span<const Magnitude<T>> magnitudes);

}  // namespace nanorun::kernels::cuda
