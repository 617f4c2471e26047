#include "kernels/stream/embedding.hpp"

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

template <class T, class Index>
void copy_rows(Mat<T> out, Vec<const Index> rows, Mat<const T> table) {
  for_rows("embedding_forward", out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* from = table.row(rows[t]);
    T* to = out.row(t);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) to[j] = from[j];
  });
}

template <class T, class Index>
void add_rows(Mat<T> d_table, Vec<const Index> rows, Vec<const std::int32_t> order, Mat<const T> d_out) {
  // The task at the first position of a row adds all of them.
  for_rows("embedding_backward", d_out.rows, [=] KOKKOS_FUNCTION(int i) {
    const Index row = rows[order[i]];
    if (i > 0 && rows[order[i - 1]] == row) return;
    T* const to = d_table.row(row);
    for (int k = i; k < d_out.rows && rows[order[k]] == row; ++k) {
      const T* const from = d_out.row(order[k]);
#pragma omp simd
      for (int j = 0; j < d_out.cols; ++j) to[j] += from[j];
    }
  });
}

}  // namespace

template <class T>
void embedding_forward(Stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table) {
  copy_rows(out, tokens, table);
}

template <class T>
void embedding_forward(Stream, Mat<T> out, Vec<const std::int32_t> rows, Mat<const T> table) {
  copy_rows(out, rows, table);
}

template <class T>
std::size_t embedding_backward_workspace(int, int) {
  return 0;
}

template <class T>
void embedding_backward(Stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace) {
  add_rows(d_table, tokens, order, d_out);
}

template <class T>
void embedding_backward(Stream, Mat<acc_t<T>> d_table, Vec<const std::int32_t> rows, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace) {
  add_rows(d_table, rows, order, d_out);
}

#define NANORUN_OPS_BY_INDEX(T, Index)                                             \
  template void embedding_forward(Stream, Mat<T>, Vec<const Index>, Mat<const T>); \
  template void embedding_backward(Stream, Mat<T>, Vec<const Index>, Vec<const std::int32_t>, Mat<const T>, Workspace);
#define NANORUN_OPS(T)                                            \
  template std::size_t embedding_backward_workspace<T>(int, int); \
  NANORUN_OPS_BY_INDEX(T, Token)                                  \
  NANORUN_OPS_BY_INDEX(T, std::int32_t)
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
