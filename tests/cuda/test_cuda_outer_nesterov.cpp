#include <gtest/gtest.h>

#include "kernels/optimizer/outer_nesterov.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// The tensors begin `first` elements into their memory. T: type of the weights, whose last bit may differ.
template <class T>
void compare(int n, int first) {
  SCOPED_TRACE(n);
  Tensor<T> w(1, n, 1);
  Tensor<float> outer(1, n, 2), u(1, n, 3);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  portable::outer_nesterov<float>({}, tail(w.host_flat()), tail(outer.host_flat()), tail(u.host_flat()), 0.7, 0.5);
  cuda::outer_nesterov<T>({}, tail(w.device_flat()), tail(outer.device_flat()), tail(u.device_flat()), 0.7, 0.5);
  outer.expect_match("w_outer", 1e-6, 1e-6);
  u.expect_match("u", 1e-6, 1e-6);
  const double spacing = std::is_same_v<T, float> ? 1e-6 : 0x1p-8;
  w.expect_match("w", 1e-6, spacing);
}

TEST(CudaOuterNesterov, MatchesThePortableImplementation) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {1, 5, 1024, 100'003}) {
    compare<float>(n, 0);
    compare<bf16>(n, 0);
  }
  compare<float>(1025, 1);
  compare<bf16>(1025, 1);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
