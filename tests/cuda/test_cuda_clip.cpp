#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device/fill.hpp"
#include "kernels/optimizer/clip.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::Tensor;

constexpr float poison = std::numeric_limits<float>::quiet_NaN();

/// What the host's factor of such sums is, and the device's.
float host_factor(const test::Vector<double>& squares, double c) {
  float factor = poison;
  portable::clip_factor<float>({}, &factor, squares, c);
  return factor;
}
float device_factor(const test::Vector<double>& squares, double c) {
  const DeviceVector<double> on_device(squares);
  const DeviceVector<float> factor(test::Vector<float>{poison});
  cuda::clip_factor<float>({}, factor.data(), Vec<const double>(on_device.data(), on_device.size()), c);
  return factor.host()[0];
}

/// The gradients begin `first` elements into their memory.
template <class A>
void compare(int n, int first) {
  SCOPED_TRACE(n);
  Tensor<A> g(1, n, 1);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  double expected = 0;
  portable::add_squares<float>({}, &expected, tail(g.host_flat()), 0.125);
  const test::SumStream stream;
  const test::DeviceSum sum;
  cuda::add_squares<A>(stream, sum.data(), tail(g.device_flat()), 0.125);
  EXPECT_NEAR(sum.added(), expected, 1e-12 * (1 + expected));
  for (const float value : {1.0f, 0.37f}) {
    const DeviceVector<float> factor(test::Vector<float>{value});
    portable::scale_gradients<float>({}, tail(g.host_flat()), &value);
    cuda::scale_gradients<A>(stream, tail(g.device_flat()), factor.data());
    if constexpr (std::is_same_v<A, bf16>) portable::round_as_bf16<float>({}, tail(g.host_flat()));
    g.expect_match("g", 0, 0);
  }
}

TEST(CudaClip, SquaresAndScalingMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {1, 5, 1024, 100'003}) {
    compare<float>(n, 0);
    compare<bf16>(n, 0);
  }
  compare<float>(1025, 1);
  compare<bf16>(1025, 1);
}

TEST(CudaClip, FactorsMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& squares : {test::Vector<double>{9, 16}, {9}, {0, 0, 0}, {1, infinite}, {nan, 1}}) {
    for (const double c : {0.5, 5.0, 6.0}) EXPECT_FLOAT_EQ(device_factor(squares, c), host_factor(squares, c));
  }
  test::Vector<double> many;
  for (int i = 0; i < 1000; ++i) many.push_back(1.0 / (1 + i));
  EXPECT_FLOAT_EQ(device_factor(many, 1), host_factor(many, 1));
}

TEST(CudaClip, SumsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  test::expect_same_bits([&](Stream stream) {
    Tensor<float> g(1, 1'000'003, 2);
    const DeviceVector<double> sum(test::Vector<double>{0});
    cuda::add_squares<float>(stream, sum.data(), g.device_flat(), 1);
    return sum.host();
  });
}

}  // namespace
}  // namespace nanorun::kernels::cuda
