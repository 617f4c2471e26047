#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "kernels/stream/smear.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

void compare(int rows, int cols, int gate) {
  SCOPED_TRACE(testing::Message() << rows << " rows, a gate of " << gate);
  Tensor<bf16> e(rows, cols, 1), out = Tensor<bf16>::poisoned(rows, cols);
  Tensor<float> w(1, gate, 2), scale(1, 1, 3, {0.5f, 1});
  portable::smear_forward<float>({}, out.host(), e.host(), w.host_flat(), scale.host().data);
  cuda::smear_forward<bf16>({}, out.device(), e.device(), w.device_flat(), scale.device().data);
  out.expect_match("out");

  Tensor<bf16> d_out(rows, cols, 4), d_e = Tensor<bf16>::poisoned(rows, cols);
  Tensor<float> d_w(1, gate, 5), d_scale(1, 1, 6);
  const test::SumStream stream;
  portable::smear_backward<float>({}, d_e.host(), d_w.host_flat(), d_scale.host().data, d_out.host(), e.host(),
                                  w.host_flat(), scale.host().data);
  cuda::smear_backward<bf16>(stream, d_e.device(), d_w.device_flat(), d_scale.device().data, d_out.device(), e.device(),
                             w.device_flat(), scale.device().data);
  // Sums of products of random sign in another order.
  d_e.expect_match("d_e", 1e-6 * std::sqrt(static_cast<double>(cols)) + 1e-5);
  const double tolerance = 1e-6 * std::sqrt(static_cast<double>(rows) * cols) + 1e-5;
  d_w.expect_match("d_w", tolerance, 1e-5);
  d_scale.expect_match("d_scale", tolerance, 1e-5);
}

TEST(CudaSmear, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 8, 5);
  compare(2, 32, 32);
  compare(37, 264, 12);
  compare(9, 4096, 1);
}

TEST(CudaSmear, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(49152, 768, 12);
}

TEST(CudaSmear, GradientsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  for (const int rows : {100, 36000}) {  // one group of thread blocks, and as many blocks as there are
    test::expect_same_bits([&](Stream stream) {
      const Tensor<bf16> e(rows, 64, 1), d_out(rows, 64, 4), d_e = Tensor<bf16>::poisoned(rows, 64);
      const Tensor<float> w(1, 12, 2), scale(1, 1, 3, {0.5f, 1}), d_w(1, 12, 5), d_scale(1, 1, 6);
      cuda::smear_backward<bf16>(stream, d_e.device(), d_w.device_flat(), d_scale.device().data, d_out.device(),
                                 e.device(), w.device_flat(), scale.device().data);
      test::Vector<float> all = d_w.device_values();
      test::append(all, d_scale.device_values());
      return all;
    });
  }
}

TEST(CudaSmear, RefusesWideGates) {
  SKIP_WITHOUT_DEVICE();
  Tensor<bf16> e(2, 64, 1), out(2, 64, 2);
  const Tensor<float> w(1, 33, 3), scale(1, 1, 4);
  const auto forward = [&](Mat<bf16> e, std::size_t gate) {
    cuda::smear_forward<bf16>({}, out.device(), e, w.device_flat().first(gate), scale.device().data);
  };
  EXPECT_NO_THROW(forward(e.device(), 32));
  EXPECT_THROW(forward(e.device(), 33), std::invalid_argument);
  EXPECT_THROW(forward(e.device().col_block(0, 8), 9), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
