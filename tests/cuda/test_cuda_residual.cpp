#include <gtest/gtest.h>

#include <cmath>

#include "kernels/residual.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

constexpr double eps = 1e-6;

/// The inputs of one block head, on both sides.
struct Inputs {
  Inputs(int rows, int cols, bool has_skip)
      : has_skip(has_skip), x_prev(rows, cols, 1), x0(rows, cols, 2), skip(rows, cols, 3), a(1, 2, 4), s(1, 1, 5) {}

  portable::ResidualInputs<float> host() {
    portable::ResidualInputs<float> in{x_prev.host(), x0.host(), a.host().data, {}, nullptr};
    if (has_skip) in.skip = skip.host(), in.s = s.host().data;
    return in;
  }
  ResidualInputs<bf16> device() const {
    ResidualInputs<bf16> in{x_prev.device(), x0.device(), a.device().data, {}, nullptr};
    if (has_skip) in.skip = skip.device(), in.s = s.device().data;
    return in;
  }

  bool has_skip;
  Tensor<bf16> x_prev, x0, skip;
  Tensor<float> a, s;
};

void compare_forward(int rows, int cols, bool has_skip, bool in_place = false) {
  Inputs in(rows, cols, has_skip);
  Tensor<bf16> separate = Tensor<bf16>::poisoned(rows, cols), n = Tensor<bf16>::poisoned(rows, cols);
  Tensor<float> rstd = Tensor<float>::poisoned(1, rows);
  Tensor<bf16>& x = in_place ? in.x_prev : separate;
  portable::residual_mix_norm_forward<float>({}, x.host(), n.host(), rstd.host_flat(), in.host(), eps);
  cuda::residual_mix_norm_forward<bf16>({}, x.device(), n.device(), rstd.device_flat(), in.device(), eps);
  x.expect_match("x");
  n.expect_match("n");
  rstd.expect_match("rstd", 0, 1e-5);
}

/// With skip_is_x_prev the skip comes from x_prev; without a skip x_prev has another reader.
void compare_backward(int rows, int cols, bool has_skip, bool skip_is_x_prev = false) {
  Inputs in(rows, cols, has_skip);
  portable::ResidualInputs<float> host_in = in.host();
  ResidualInputs<bf16> device_in = in.device();
  if (skip_is_x_prev) host_in.skip = host_in.x_prev, device_in.skip = device_in.x_prev;
  Tensor<bf16> d_x(rows, cols, 6), d_x0(rows, cols, 7), d_skip = Tensor<bf16>::poisoned(rows, cols);
  Tensor<bf16> n(rows, cols, 10), d_n(rows, cols, 11), d_x_prev(rows, cols, 12);
  Tensor<float> rstd(1, rows, 13, {0.5f, 2}), d_a(1, 2, 8), d_s(1, 1, 9);
  portable::ResidualGradients<float> host{d_x.host(), d_x0.host(), d_a.host().data, {}, nullptr, {}};
  ResidualGradients<bf16> device{d_x.device(), d_x0.device(), d_a.device().data, {}, nullptr, {}};
  if (has_skip) {
    host.d_skip = d_skip.host(), host.d_s = d_s.host().data;
    device.d_skip = d_skip.device(), device.d_s = d_s.device().data;
  } else {
    host.d_x_prev = d_x_prev.host(), device.d_x_prev = d_x_prev.device();
  }
  portable::residual_mix_norm_backward<float>({}, host, {n.host(), rstd.host_flat(), d_n.host()}, host_in);
  cuda::residual_mix_norm_backward<bf16>({}, device, {n.device(), rstd.device_flat(), d_n.device()}, device_in);
  d_x.expect_match("d_x");
  d_x0.expect_match("d_x0");
  if (has_skip && !skip_is_x_prev) {
    d_skip.expect_match("d_skip");
  } else {
    for (const float value : d_skip.device_values()) ASSERT_TRUE(std::isnan(value));
  }
  // Sums of rows * cols float products of random sign; thousands of blocks round the total when they add to it.
  const double tolerance = 1e-6 * std::sqrt(static_cast<double>(rows) * cols);
  d_a.expect_match("d_a", tolerance, 1e-5);
  d_s.expect_match("d_s", tolerance, 1e-5);
}

TEST(CudaResidual, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] : {std::pair(1, 8), {9, 264}, {40, 768}, {33, 1032}, {5, 4096}}) {
    for (const bool has_skip : {false, true}) {
      SCOPED_TRACE(cols);
      compare_forward(rows, cols, has_skip);
      compare_forward(rows, cols, has_skip, true);
      compare_backward(rows, cols, has_skip);
    }
    compare_backward(rows, cols, true, true);
  }
}

TEST(CudaResidual, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_forward(49152, 768, true);
  compare_backward(49152, 768, true);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
