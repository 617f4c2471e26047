#pragma once
// Elementwise helpers on flat tensors [n].

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

/// x[i] = value
template <class T>
void fill(Stream stream, Vec<T> x, double value);

/// x[i] *= factor
template <class T>
void scale(Stream stream, Vec<T> x, double factor);

/// out += x, both [rows, cols]
template <class T>
void add(Stream stream, Mat<T> out, Mat<const T> x);

/// Returns sum_i x[i]², accumulated in double.
template <class T>
double sum_of_squares(Stream stream, Vec<const T> x);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

template <class T>
void fill(Stream stream, Vec<T> x, double value);

}  // namespace nanorun::kernels::cuda
