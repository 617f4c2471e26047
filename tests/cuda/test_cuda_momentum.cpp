#include <gtest/gtest.h>

#include "kernels/muon.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// The tensors begin `first` elements into their memory.
void compare_momentum(int n, int first) {
  Tensor<float> g(1, n, 1), buf(1, n, 2);
  portable::nesterov_momentum<float>({}, g.host_flat().subspan(first), buf.host_flat().subspan(first), 0.95);
  cuda::nesterov_momentum<float>({}, g.device_flat().subspan(first), buf.device_flat().subspan(first), 0.95);
  g.expect_match("g", 1e-6, 1e-6);
  buf.expect_match("buf", 1e-6, 1e-6);
}

void compare_add_scaled(int n, int first, bool with_copy) {
  Tensor<float> w(1, n, 1), x(1, n, 2);
  Tensor<bf16> copy = Tensor<bf16>::poisoned(1, n);
  const Vec<float> device_w = w.device_flat().subspan(first), device_x = x.device_flat().subspan(first);
  portable::add_scaled<float>({}, w.host_flat().subspan(first), x.host_flat().subspan(first), -0.03);
  if (with_copy) {
    cuda::add_scaled_with_copy({}, device_w, copy.device_flat().subspan(first), device_x, -0.03);
  } else {
    cuda::add_scaled<float>({}, device_w, device_x, -0.03);
  }
  w.expect_match("w", 1e-6, 1e-6);
  const std::vector<float> weights = w.device_values(), copied = copy.device_values();
  for (int i = first; with_copy && i < n; ++i) {
    ASSERT_EQ(copied[i], test::to_float(test::from_float<bf16>(weights[i]))) << i;
  }
}

TEST(CudaMomentum, SmallSizesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {2, 1003, 4096}) {
    for (const int first : {0, 1, 4}) {
      if (first >= n) continue;
      SCOPED_TRACE(n);
      compare_momentum(n, first);
      compare_add_scaled(n, first, false);
      compare_add_scaled(n, first, true);
    }
  }
}

TEST(CudaMomentum, RecipeSizeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_momentum(24 * 3072 * 768, 0);
  compare_add_scaled(24 * 3072 * 768, 0, true);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
