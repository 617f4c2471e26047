#include <gtest/gtest.h>

#include "kernels/adam.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

constexpr AdamOptions options{.lr = 0.1, .t = 3};

/// The state begins `first` elements into its memory.
void compare(int n, int first, bool with_copy) {
  SCOPED_TRACE(n);
  Tensor<float> w(1, n, 1), m(1, n, 2), v(1, n, 3, {0.01f, 1}), g(1, n, 4);
  Tensor<bf16> copy = Tensor<bf16>::poisoned(1, n);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  portable::adam_update<float>({}, tail(w.host_flat()), tail(m.host_flat()), tail(v.host_flat()), tail(g.host_flat()),
                               options);
  if (with_copy) {
    cuda::adam_update_with_copy({}, tail(w.device_flat()), tail(copy.device_flat()), tail(m.device_flat()),
                                tail(v.device_flat()), tail(g.device_flat()), options);
  } else {
    cuda::adam_update<float>({}, tail(w.device_flat()), tail(m.device_flat()), tail(v.device_flat()),
                             tail(g.device_flat()), options);
  }
  // A few float roundings of numbers of order 1.
  m.expect_match("m", 1e-6, 1e-6);
  v.expect_match("v", 1e-6, 1e-6);
  w.expect_match("w", 1e-6, 1e-6);
  const std::vector<float> weights = w.device_values(), copied = copy.device_values();
  for (int i = 0; with_copy && i < n; ++i) {
    if (i < first)
      ASSERT_TRUE(std::isnan(copied[i]));
    else
      ASSERT_EQ(copied[i], test::to_float(test::from_float<bf16>(weights[i]))) << i;
  }
}

TEST(CudaAdam, SmallSizesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const bool with_copy : {false, true}) {
    compare(1, 0, with_copy);
    compare(1003, 0, with_copy);
    compare(1003, 1, with_copy);  // not aligned
    compare(4096, 4, with_copy);
  }
}

TEST(CudaAdam, RecipeSizeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(50304 * 768, 0, true);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
