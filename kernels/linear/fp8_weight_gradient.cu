#include "kernels/linear/fp8_weight_gradient.hpp"

#include "kernels/device/tier.hpp"

namespace nanorun::kernels::cuda {

template <class A, class B>
void fp8_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const A> a, Mat<const B> b_t) {
  NANORUN_ON_FP8_TIER(fp8_weight_gradient<A, B>(stream, d_w, output, factor, a, b_t));
}

std::size_t fp8_weight_gradient_workspace(int rows, int cols, int inner) {
  return NANORUN_ON_FP8_TIER(fp8_weight_gradient_workspace(rows, cols, inner));
}

template <class A, class B>
void fp8_weight_gradient_in_parts(Stream stream, Mat<float> d_w, bool transposes, Output output, const float* factor,
                                  Mat<const A> a, Mat<const B> b_t, Workspace workspace) {
  NANORUN_ON_FP8_TIER(fp8_weight_gradient_in_parts<A, B>(stream, d_w, transposes, output, factor, a, b_t, workspace));
}

template void fp8_weight_gradient(Stream, Mat<float>, Output, float, Mat<const e5m2>, Mat<const e4m3>);
#define NANORUN_IN_PARTS(A, B)                                                                             \
  template void fp8_weight_gradient_in_parts(Stream, Mat<float>, bool, Output, const float*, Mat<const A>, \
                                             Mat<const B>, Workspace);
NANORUN_IN_PARTS(e4m3, e4m3)
NANORUN_IN_PARTS(e5m2, e4m3)
NANORUN_IN_PARTS(e4m3, e5m2)

}  // namespace nanorun::kernels::cuda
