#include "kernels/embedding.hpp"

#include <algorithm>

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void embedding_forward(Stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table) {
  for_rows("embedding_forward", out.rows, [=](int t) { std::copy_n(table.row(tokens[t]), out.cols, out.row(t)); });
}

template <class T>
void embedding_backward(Stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Mat<const T> d_out) {
  // Serial over t: tokens repeat, and a fixed order keeps the sums reproducible.
  for (int t = 0; t < d_out.rows; ++t) {
    const T* from = d_out.row(t);
    T* to = d_table.row(tokens[t]);
#pragma omp simd
    for (int j = 0; j < d_out.cols; ++j) to[j] += from[j];
  }
}

#define NANORUN_INSTANTIATE(T)                                                     \
  template void embedding_forward(Stream, Mat<T>, Vec<const Token>, Mat<const T>); \
  template void embedding_backward(Stream, Mat<T>, Vec<const Token>, Mat<const T>);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
