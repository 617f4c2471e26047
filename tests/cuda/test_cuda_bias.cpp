#include <gtest/gtest.h>

#include "kernels/linear/bias.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

void compare(int rows, int cols) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
  Tensor<bf16> out(rows, cols, 1, {-1, 1}, cols + 8), d_out(rows, cols, 2, {-1, 1}, cols + 8);
  Tensor<float> b(1, cols, 3), d_b(1, cols, 4);
  const test::SumStream stream;
  portable::add_bias<float>({}, out.host(), b.host_flat());
  portable::bias_backward<float>({}, d_b.host_flat(), d_out.host());
  cuda::add_bias<bf16>(stream, out.device(), b.device_flat());
  cuda::bias_backward<bf16>(stream, d_b.device_flat(), d_out.device());
  out.expect_match("out");
  d_b.expect_match("d_b", 1e-6 * rows, 1e-5);
}

TEST(CudaBias, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 8);
  compare(9, 264);
  compare(300, 1600);
  compare(4096, 3072);
  compare(64, 16384);
  compare(300, 50304);
  compare(16384, 1600);
  compare(5000, 6400);
}

TEST(CudaBias, GradientIsTheSameEachTime) {
  SKIP_WITHOUT_DEVICE();
  const Tensor<bf16> d_out(5000, 776, 1);
  Tensor<float> first(1, 776, 2), second(1, 776, 2);
  for (const auto* d_b : {&first, &second}) {
    const test::SumStream stream;
    cuda::bias_backward<bf16>(stream, d_b->device_flat(), d_out.device());
  }
  EXPECT_EQ(first.device_values(), second.device_values());
}

}  // namespace
}  // namespace nanorun::kernels::cuda
