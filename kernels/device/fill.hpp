#pragma once
// Elementwise helpers on flat tensors [n].

#include <type_traits>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// x[i] = value; T = int32 too
template <class T>
void fill(Stream stream, Vec<T> x, double value);

/// out[i] = x[i], rounded to T, or truncated with `truncates`. Where X is T, out may be x, and nothing happens.
template <class T, class X = acc_t<T>>
void round_to(Stream stream, Vec<T> out, Vec<const std::type_identity_t<X>> x, bool truncates = false);

/// x[i] = the nearest bf16, ties to even; of a double, of the float that is nearest to it.
template <class T>
void round_as_bf16(Stream stream, Vec<T> x);

/// out += x, both [rows, cols]
template <class T>
void add(Stream stream, Mat<T> out, Mat<const T> x);

/// out += x, x = 0
template <class T>
void move_sum(Stream stream, Vec<T> out, Vec<T> x);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16, float, double or int32
template <class T>
void fill(Stream stream, Vec<T> x, double value);

/// T = bf16 or float; X = T or float
template <class T, class X = acc_t<T>>
void round_to(Stream stream, Vec<T> out, Vec<const std::type_identity_t<X>> x, bool truncates = false);

/// T = float
template <class T>
void round_as_bf16(Stream stream, Vec<T> x);

/// T = bf16 or float; rows are whole 16-byte vectors of bf16, else std::invalid_argument.
template <class T>
void add(Stream stream, Mat<T> out, Mat<const T> x);

/// The same for x in the accumulators' type.
template <class T>
requires(!std::is_same_v<T, acc_t<T>>) void add(Stream stream, Mat<T> out, Mat<const acc_t<T>> x);

/// T = float. Where x is zero, out is not read.
template <class T>
void move_sum(Stream stream, Vec<T> out, Vec<T> x);

}  // namespace nanorun::kernels::cuda
