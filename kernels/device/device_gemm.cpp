// Products of matrices that Kokkos' device computes as a whole. cuBLAS is the only BLAS of a device here; without one
// Kokkos multiplies. docs/portability.md says where those of other vendors would stand.

#include "kernels/device/portable.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
#include <cublas_v2.h>

#include <stdexcept>
#include <string>
#endif

namespace nanorun::kernels::portable {

namespace {

#if defined(KOKKOS_ENABLE_CUDA)

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(call) + ": " + cublasGetStatusString(status));
}

/// cuBLAS on Kokkos' device and stream, until Kokkos stops.
cublasHandle_t library() {
  static const cublasHandle_t handle = [] {
    cublasHandle_t made = nullptr;
    check(cublasCreate(&made), "cublasCreate");
    Kokkos::push_finalize_hook([made] { cublasDestroy(made); });
    check(cublasSetStream(made, Kokkos::Cuda().cuda_stream()), "cublasSetStream");
    return made;
  }();
  return handle;
}

/// cuBLAS counts by columns: to it each matrix here is its transpose, and cᵀ = alpha op(b)ᵀ op(a)ᵀ + beta cᵀ. Its
/// default mode sums float in fp32, in an order that two runs share.
template <class T>
void multiply(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  const auto order = [](Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; };
  const auto gemm = [](auto... arguments) {
    if constexpr (std::is_same_v<T, float>)
      return cublasSgemm(arguments...);
    else
      return cublasDgemm(arguments...);
  };
  check(gemm(library(), order(op_b), order(op_a), c.cols, c.rows, inner_of(op_a, a), &alpha, b.data, b.ld, a.data, a.ld,
             &beta, c.data, c.ld),
        "cublasGemm");
  Exec().fence();
}

#else

/// Each team computes a block of c.
template <class T>
void multiply(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  constexpr int block = gemm_square;
  const int across = ceil_div(c.cols, block);
  for_teams("gemm", ceil_div(c.rows, block) * across, [=] KOKKOS_FUNCTION(const Team& team, int i) {
    const int row = i / across * block, rows = std::min(block, c.rows - row);
    const int col = i % across * block, cols = std::min(block, c.cols - col);
    gemm<T>(team, op_a, op_b, alpha, op_a == Op::none ? a.row_block(row, rows) : a.col_block(row, rows),
            op_b == Op::none ? b.col_block(col, cols) : b.row_block(col, cols), beta,
            c.row_block(row, rows).col_block(col, cols));
  });
}

#endif

}  // namespace

template <class T>
void device_gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  show_life();
  multiply(op_a, op_b, alpha, a, b, beta, c);
}

#define NANORUN_OPS(T) template void device_gemm(Op, Op, T, Mat<const T>, Mat<const T>, T, Mat<T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
