#include <gtest/gtest.h>

#include <limits>

#include "kernels/stream/norm.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::InPlace;
using test::Tensor;

constexpr double eps = 1e-6;

void compare_forward(int rows, int cols, int ld, InPlace in_place, bool shifted = false) {
  Tensor<float> shift(1, cols, 5);
  const Vec<const float> host_shift = shifted ? Vec<const float>(shift.host_flat()) : Vec<const float>();
  const Vec<const float> device_shift = shifted ? Vec<const float>(shift.device_flat()) : Vec<const float>();
  Tensor<bf16> x(rows, cols, 1, {-2, 3}, ld);
  Tensor<float> rstd = Tensor<float>::poisoned(1, rows);
  Tensor<bf16> out = Tensor<bf16>::poisoned(rows, cols);
  Tensor<bf16>& target = in_place == InPlace::yes ? x : out;
  portable::rms_norm_forward<float>({}, target.host(), rstd.host_flat(), x.host(), eps, nullptr, host_shift);
  cuda::rms_norm_forward<bf16>({}, target.device(), rstd.device_flat(), x.device(), eps, nullptr, device_shift);
  target.expect_match("out");
  rstd.expect_match("rstd", 0, 1e-5);
}

void compare_backward(int rows, int cols, int ld, Output output) {
  Tensor<bf16> out(rows, cols, 1, {-2, 2}), d_out(rows, cols, 2);
  Tensor<bf16> d_x =
      output == Output::accumulate ? Tensor<bf16>(rows, cols, 3, {}, ld) : Tensor<bf16>::poisoned(rows, cols, ld);
  Tensor<float> rstd(1, rows, 4, {0.2f, 2});
  portable::rms_norm_backward<float>({}, d_x.host(), out.host(), rstd.host_flat(), d_out.host(), output);
  cuda::rms_norm_backward<bf16>({}, d_x.device(), out.device(), rstd.device_flat(), d_out.device(), output);
  d_x.expect_match("d_x");
}

// One width for each count of vectors a lane, the widest among them.
struct Shape {
  int rows, cols, ld;
};
constexpr Shape shapes[] = {{1, 8, 8},        {9, 264, 272},   {17, 128, 128},   {8, 776, 776},  {9, 1088, 1096},
                            {33, 1536, 1536}, {7, 1600, 1600}, {33, 2048, 2048}, {5, 4096, 4104}};

TEST(CudaNorm, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols, ld] : shapes) {
    SCOPED_TRACE(cols);
    for (const InPlace in_place : {InPlace::no, InPlace::yes}) compare_forward(rows, cols, ld, in_place);
    compare_forward(rows, cols, ld, InPlace::no, /*shifted=*/true);
    for (const Output output : {Output::accumulate, Output::overwrite}) compare_backward(rows, cols, ld, output);
  }
}

/// Blocks hold eight rows; the largest is in the first, an inner or the last. NaN does not count.
TEST(CudaNorm, RaisesTheLargestMagnitude) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols, ld] : {Shape{1, 8, 8}, {9, 264, 264}, {1003, 768, 768}, {33, 4096, 4096}}) {
    for (const int row : {0, rows / 2, rows - 1}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, row " << row);
      test::Vector<float> values(static_cast<std::size_t>(rows) * cols, 0.5f);
      values[static_cast<std::size_t>(row) * cols + cols - 3] = -40;
      if (rows > 1) values[static_cast<std::size_t>((row + 1) % rows) * cols] = std::numeric_limits<float>::quiet_NaN();
      const Tensor<bf16> x = Tensor<bf16>::of(rows, cols, values), out = Tensor<bf16>::poisoned(rows, cols);
      const Tensor<float> rstd = Tensor<float>::poisoned(1, rows);
      const test::DeviceVector<float> maximum(test::Vector<float>{0});
      const auto run = [&] {
        rms_norm_forward<bf16>({}, out.device(), rstd.device_flat(), x.device(), eps, maximum.data());
        return maximum.host()[0];
      };
      const float largest = run();
      EXPECT_GT(largest, 2);
      EXPECT_EQ(largest, -out.device_values()[static_cast<std::size_t>(row) * cols + cols - 3]);
      EXPECT_EQ(run(), largest);
      const test::DeviceVector<float> larger(test::Vector<float>{99});
      rms_norm_forward<bf16>({}, out.device(), rstd.device_flat(), x.device(), eps, larger.data());
      EXPECT_EQ(larger.host()[0], 99);
    }
  }
}

TEST(CudaNorm, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_forward(49152, 768, 768, InPlace::no);
  compare_backward(49152, 768, 768, Output::accumulate);
}

TEST(CudaNorm, RefusesMoreThan4096Columns) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare_forward(1, 4104, 4104, InPlace::no), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
