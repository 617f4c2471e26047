#include "kernels/optimizer/muon_symmetric_gemm.hpp"

#include <cassert>
#include <stdexcept>

#include "kernels/device/tier.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.cuh"

namespace nanorun::kernels::cuda {

template <class T>
void compute_triangle(Stream stream, const GemmOptions& options, Mat<const T> x, Mat<const T> y, Mat<const T> addend,
                      Mat<T> out, const float* scales) {
  NANORUN_ON_TIER(compute_triangle<T>(stream, options, x, y, addend, out, scales));
}

namespace {

template <class T>
bool fits(Mat<const T> x, Mat<T> out) {
  return computes_triangle(x.rows, x.cols) && x.ld == x.cols && out.ld == out.cols;
}

}  // namespace

template <class T>
void symmetric_gemm(Stream stream, const GemmOptions& options, Mat<const std::type_identity_t<T>> x,
                    Mat<const std::type_identity_t<T>> addend, Mat<T> out, const float* scales) {
  assert(out.rows == x.rows && out.cols == x.rows && out.data != x.data && out.data != addend.data);
  if (fits<T>(x, out)) return compute_triangle<T>(stream, options, x, x, addend, out, scales);
  if (scales) throw std::invalid_argument("symmetric_gemm: scales need a matrix of whole tiles");
  const Mat<const T> c = options.beta != 0 ? addend : out;
  gemm<T, T, T>(stream, options, Op::none, x, Op::transpose, x, c, out);
}

template <class T>
void symmetric_product(Stream stream, const GemmOptions& options, Mat<const std::type_identity_t<T>> x,
                       Mat<const std::type_identity_t<T>> y, Mat<T> out) {
  assert(x.cols == x.rows && y.rows == x.rows && y.cols == x.rows && out.rows == x.rows && out.cols == x.rows);
  assert(out.data != x.data && out.data != y.data && y.ld == x.ld);
  if (fits<T>(x, out)) return compute_triangle<T>(stream, options, x, y, y, out, nullptr);
  gemm<T, T, T>(stream, options, Op::none, x, Op::none, y, y, out);
}

#define NANORUN_SYMMETRIC(T)                                                                                  \
  template void symmetric_gemm(Stream, const GemmOptions&, Mat<const T>, Mat<const T>, Mat<T>, const float*); \
  template void symmetric_product(Stream, const GemmOptions&, Mat<const T>, Mat<const T>, Mat<T>);
NANORUN_SYMMETRIC(bf16)
NANORUN_SYMMETRIC(fp16)

}  // namespace nanorun::kernels::cuda
