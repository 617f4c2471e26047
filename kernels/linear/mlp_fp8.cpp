#include "kernels/linear/mlp_fp8.hpp"

#include <cassert>
#include <cmath>

#include "kernels/device/fp8.hpp"
#include "kernels/device/magnitude.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

template <class T>
Mat<const T> quantised(WorkspaceAllocator& allocator, Mat<const T> x, Fp8Scale<T> scale) {
  const Mat<T> out(allocator.take<T>(x.size()), x.rows, x.cols);
  for_rows("quantise_scaled", x.rows, [=] KOKKOS_FUNCTION(int i) {
    const float inverse = 1 / scale.value();
    const T* const from = x.row(i);
    T* const to = out.row(i);
#pragma omp simd
    for (int j = 0; j < x.cols; ++j) to[j] = round_to_e4m3(inverse * static_cast<float>(from[j]));
  });
  return out;
}

/// out = f(s_x s_w xq wqᵀ), element by element.
template <class T, class Function>
void product(Mat<T> out, Mat<const T> x, Fp8Scale<T> scale_x, Mat<const T> w, Fp8Scale<T> scale_w, Workspace workspace,
             const Function& f) {
  assert(x.rows == out.rows && w.rows == out.cols && x.cols == w.cols);
  assert(workspace.size() >= linear_fp8_workspace<T>(x.rows, x.cols, w.rows));
  WorkspaceAllocator allocator(workspace);
  const Mat<const T> xq = quantised(allocator, x, scale_x), wq = quantised(allocator, w, scale_w);
  gemm<T>(Op::none, Op::transpose, 1, xq, wq, 0, out);
  for_rows("unscale", out.rows, [=] KOKKOS_FUNCTION(int i) {
    const T unscale = static_cast<T>(scale_x.value()) * static_cast<T>(scale_w.value());
    T* const row = out.row(i);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) row[j] = f(unscale * row[j]);
  });
}

}  // namespace

template <class T>
std::size_t linear_fp8_workspace(int rows, int inner, int cols) {
  const auto bytes = [&](int n) { return WorkspaceAllocator::bytes<T>(static_cast<std::size_t>(n) * inner); };
  return bytes(rows) + bytes(cols);
}

template <class T>
void linear_relu2_forward_fp8(Stream, Mat<T> h, acc_t<T>* maximum, Mat<const T> x, Fp8Scale<acc_t<T>> scale_x,
                              Mat<const T> w, Fp8Scale<acc_t<T>> scale_w, Workspace workspace, const Fp8Ahead<T>&) {
  assert(maximum != scale_x.maximum && maximum != scale_w.maximum);
  const auto relu2 = [] KOKKOS_FUNCTION(T z) { return z < 0 ? T(0) : z * z; };  // passes NaN on
  product(h, x, scale_x, w, scale_w, workspace, relu2);
  const Magnitude<T> magnitude{maximum, h};
  max_magnitude<T>({}, {&magnitude, 1});
}

template <class T>
void linear_forward_fp8(Stream, Mat<T> out, Mat<const T> h, Fp8Scale<acc_t<T>> scale_h, Mat<const T> v,
                        Fp8Scale<acc_t<T>> scale_v, Workspace workspace, Mat<const e4m3>, Workspace) {
  product(out, h, scale_h, v, scale_v, workspace, [] KOKKOS_FUNCTION(T z) { return z; });
}

#define NANORUN_OPS(T)                                                                                              \
  template std::size_t linear_fp8_workspace<T>(int, int, int);                                                      \
  template void linear_relu2_forward_fp8(Stream, Mat<T>, T*, Mat<const T>, Fp8Scale<T>, Mat<const T>, Fp8Scale<T>,  \
                                         Workspace, const Fp8Ahead<T>&);                                            \
  template void linear_forward_fp8(Stream, Mat<T>, Mat<const T>, Fp8Scale<T>, Mat<const T>, Fp8Scale<T>, Workspace, \
                                   Mat<const e4m3>, Workspace);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
