#include <gtest/gtest.h>

#include "kernels/device/fill.hpp"
#include "kernels/optimizer/average.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// The tensors begin `first` elements into their memory. T: type of the weights, whose last bit may differ.
template <class T>
void compare(int n, int first) {
  SCOPED_TRACE(n);
  Tensor<T> w(1, n, 1);
  Tensor<float> average = Tensor<float>::poisoned(1, n);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  for (const double rate : {1.0, 0.25}) {
    portable::average_weights<float>({}, tail(average.host_flat()), tail(w.host_flat()), rate);
    cuda::average_weights<T>({}, tail(average.device_flat()), tail(w.device_flat()), rate);
    portable::fill<float>({}, tail(w.host_flat()), 0.5);
    cuda::fill<T>({}, tail(w.device_flat()), 0.5);
  }
  average.expect_match("average", 1e-7, 1e-7, Tensor<float>::Written::in_part);
  portable::blend_average<float>({}, tail(w.host_flat()), tail(average.host_flat()), 0.65);
  cuda::blend_average<T>({}, tail(w.device_flat()), tail(average.device_flat()), 0.65);
  const double spacing = std::is_same_v<T, float> ? 1e-6 : 0x1p-8;
  w.expect_match("w", spacing, spacing);
}

TEST(CudaAverage, MatchesThePortableImplementation) {
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
