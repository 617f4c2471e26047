#include "kernels/embedding.hpp"

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void embedding_forward(Stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table) {
  for_rows("embedding_forward", out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* from = table.row(tokens[t]);
    T* to = out.row(t);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) to[j] = from[j];
  });
}

template <class T>
std::size_t embedding_backward_workspace(int, int) {
  return 0;
}

template <class T>
void embedding_backward(Stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace) {
  // The task at the first position of a token adds all of them.
  for_rows("embedding_backward", d_out.rows, [=] KOKKOS_FUNCTION(int i) {
    const Token token = tokens[order[i]];
    if (i > 0 && tokens[order[i - 1]] == token) return;
    T* const to = d_table.row(token);
    for (int k = i; k < d_out.rows && tokens[order[k]] == token; ++k) {
      const T* const from = d_out.row(order[k]);
#pragma omp simd
      for (int j = 0; j < d_out.cols; ++j) to[j] += from[j];
    }
  });
}

#define NANORUN_INSTANTIATE(T)                                                     \
  template void embedding_forward(Stream, Mat<T>, Vec<const Token>, Mat<const T>); \
  template std::size_t embedding_backward_workspace<T>(int, int);                  \
  template void embedding_backward(Stream, Mat<T>, Vec<const Token>, Vec<const std::int32_t>, Mat<const T>, Workspace);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
