#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/xsa.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

struct Shape {
  int rows, heads, head_dim, pad = 0;  ///< rows of y and v lie `pad` elements further apart than they must
};

/// With `learned`, the rows of alpha coincide.
void compare(const Shape& shape, bool learned, bool in_place) {
  SCOPED_TRACE(std::to_string(shape.rows) + " rows, D " + std::to_string(shape.head_dim) + ", learned " +
               std::to_string(learned));
  const int rows = shape.rows, heads = shape.heads, cols = heads * shape.head_dim, ld = cols + shape.pad;
  Tensor<bf16> y(rows, cols, 1, {-1, 1}, ld), v(rows, cols, 2, {-1, 1}, ld), d_out(rows, cols, 3);
  Tensor<bf16> d_v(rows, cols, 4), d_y = Tensor<bf16>::poisoned(rows, cols), out = Tensor<bf16>::poisoned(rows, cols);
  Tensor<float> alpha(learned ? 1 : rows, heads, 5), d_alpha(learned ? 1 : rows, heads, 6);
  const auto rows_of = [&](auto x) { return decltype(x)(x.data, rows, heads, learned ? 0 : heads); };
  Tensor<bf16>& to = in_place ? d_out : d_y;
  portable::xsa_backward<float>({}, to.host(), d_v.host(), rows_of(d_alpha.host()), d_out.host(), y.host(), v.host(),
                                rows_of(alpha.host()), heads);
  cuda::xsa_backward<bf16>({}, to.device(), d_v.device(), rows_of(d_alpha.device()), d_out.device(), y.device(),
                           v.device(), rows_of(alpha.device()), heads);
  to.expect_match("d_y");
  d_v.expect_match("d_v");
  d_alpha.expect_match("d_alpha", learned ? 2e-6 * std::sqrt(static_cast<double>(rows)) : 1e-5, 1e-5);
  Tensor<bf16>& result = in_place ? y : out;
  portable::xsa_forward<float>({}, result.host(), y.host(), v.host(), rows_of(alpha.host()), heads);
  cuda::xsa_forward<bf16>({}, result.device(), y.device(), v.device(), rows_of(alpha.device()), heads);
  result.expect_match("out");
}

TEST(CudaXsa, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& shape : {Shape{1, 1, 8}, Shape{9, 3, 16, 8}, Shape{40, 6, 128, 768}, Shape{7, 5, 256}}) {
    for (const bool learned : {false, true}) {
      compare(shape, learned, false);
      compare(shape, learned, true);
    }
  }
}

TEST(CudaXsa, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare({49152, 6, 128}, false, false);
  compare({49152, 6, 128}, true, false);
}

TEST(CudaXsa, ValuesWithoutNormStayFinite) {
  SKIP_WITHOUT_DEVICE();
  Tensor<bf16> y(9, 128, 1), v(9, 128, 2, {-1e-6f, 1e-6f}), d_out(9, 128, 3), d_v(9, 128, 4);
  Tensor<bf16> out = Tensor<bf16>::poisoned(9, 128);
  Tensor<float> alpha(9, 1, 5), d_alpha(9, 1, 6);
  portable::xsa_forward<float>({}, out.host(), y.host(), v.host(), alpha.host(), 1);
  cuda::xsa_forward<bf16>({}, out.device(), y.device(), v.device(), alpha.device(), 1);
  portable::xsa_backward<float>({}, d_out.host(), d_v.host(), d_alpha.host(), d_out.host(), y.host(), v.host(),
                                alpha.host(), 1);
  cuda::xsa_backward<bf16>({}, d_out.device(), d_v.device(), d_alpha.device(), d_out.device(), y.device(), v.device(),
                           alpha.device(), 1);
  out.expect_match("out");
  d_out.expect_match("d_y");
  d_v.expect_match("d_v", 1e-3);  // y is multiplied by <d_out, v> / 1e-8, up to 1e3
  d_alpha.expect_match("d_alpha", 1e-5, 1e-5);
}

TEST(CudaXsa, RefusesOtherHeadWidths) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare({4, 2, 24}, false, false), std::invalid_argument);
  EXPECT_THROW(compare({4, 1, 512}, false, false), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
