// Shared functions that contain a kernel lambda are compiled once, here: with nvcc such a lambda holds pointers that
// each object file sets for itself, so copies from several object files cannot be mixed.

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

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
    device_gemm(op_a, op_b, alpha, a, b, beta, c);
  }
}

#define NANORUN_GEMMS(T)                                                     \
  template void blas_gemm(Op, Op, T, Mat<const T>, Mat<const T>, T, Mat<T>); \
  template void gemm(Op, Op, T, Mat<const T>, Mat<const T>, T, Mat<T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_GEMMS)

}  // namespace nanorun::kernels::portable
