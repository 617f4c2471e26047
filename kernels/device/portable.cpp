// Shared functions that contain a kernel lambda are compiled once, here: with nvcc such a lambda holds pointers that
// each object file sets for itself, so copies from several object files cannot be mixed.

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

template <class T>
void gemm_on_device(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  constexpr int block = 64;
  const int across = ceil_div(c.cols, block);
  for_teams("gemm", ceil_div(c.rows, block) * across, [=] KOKKOS_FUNCTION(const Team& team, int i) {
    const int row = i / across * block, rows = std::min(block, c.rows - row);
    const int col = i % across * block, cols = std::min(block, c.cols - col);
    gemm<T>(team, op_a, op_b, alpha, op_a == Op::none ? a.row_block(row, rows) : a.col_block(row, rows),
            op_b == Op::none ? b.col_block(col, cols) : b.row_block(col, cols), beta,
            c.row_block(row, rows).col_block(col, cols));
  });
}

}  // namespace

void add_to(double* total, double value) {
  for_rows("add_to", 1, [=] KOKKOS_FUNCTION(int) { *total += value; });
}

template <class T>
void blas_gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  const int inner = inner_of(op_a, a);
  show_life(2.0 * c.rows * c.cols * inner);
  const auto ta = static_cast<CBLAS_TRANSPOSE>(op_a);
  const auto tb = static_cast<CBLAS_TRANSPOSE>(op_b);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, ta, tb, c.rows, c.cols, inner, alpha, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, c.rows, c.cols, inner, alpha, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
  }
}

template <class T>
void gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  if constexpr (on_host) {
    blas_gemm(op_a, op_b, alpha, a, b, beta, c);
  } else {
    gemm_on_device(op_a, op_b, alpha, a, b, beta, c);
  }
}

#define NANORUN_GEMMS(T)                                                     \
  template void blas_gemm(Op, Op, T, Mat<const T>, Mat<const T>, T, Mat<T>); \
  template void gemm(Op, Op, T, Mat<const T>, Mat<const T>, T, Mat<T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_GEMMS)

}  // namespace nanorun::kernels::portable
