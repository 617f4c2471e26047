#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/muon.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// The tensors begin `first` elements into their memory.
void compare_momentum(int n, int first) {
  Tensor<float> g(1, n, 1), buf(1, n, 2);
  const test::DeviceSum squares;
  test::Vector<double> host_squares(1);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  portable::nesterov_momentum<float>({}, tail(g.host_flat()), tail(buf.host_flat()), 0.95, 1.0 / 3,
                                     host_squares.data());
  cuda::nesterov_momentum<float>({}, tail(g.device_flat()), tail(buf.device_flat()), 0.95, 1.0 / 3, squares.data());
  g.expect_match("g", 1e-6, 1e-6);
  buf.expect_match("buf", 1e-6, 1e-6);
  EXPECT_NEAR(squares.added(), host_squares[0], 1e-6 * host_squares[0]);
}

/// add_scaled(), or add_scaled_with_decay() with a decay above 0.
template <class T>
void compare_add_scaled(int n, int first, double decay) {
  Tensor<float> w(1, n, 1), x(1, n, 2);
  const Tensor<bf16> rounded = Tensor<bf16>::poisoned(1, n);
  const test::DeviceSum squares;
  test::Vector<double> host_squares(1);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  const Vec<float> host_w = tail(w.host_flat());
  if (decay > 0) {
    portable::add_scaled_with_decay<float>({}, host_w, host_w, tail(x.host_flat()), 0.03, decay, host_squares.data());
  } else {
    portable::add_scaled<float>({}, host_w, host_w, tail(x.host_flat()), -0.03, host_squares.data());
  }
  const auto add = [&](Vec<T> copy) {
    const Vec<float> device_w = tail(w.device_flat()), device_x = tail(x.device_flat());
    if (decay > 0) return add_scaled_with_decay<T>({}, device_w, copy, device_x, 0.03, decay, squares.data());
    add_scaled<T>({}, device_w, copy, device_x, -0.03, squares.data());
  };
  if constexpr (std::is_same_v<T, float>) {
    add(tail(w.device_flat()));
  } else {
    add(tail(rounded.device_flat()));
    rounded.expect_rounded(w, first);
  }
  w.expect_match("w", 1e-6, 1e-6);
  EXPECT_NEAR(squares.added(), host_squares[0], 1e-6 * host_squares[0]);
}

TEST(CudaMomentum, SmallSizesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {2, 1003, 4096}) {
    for (const int first : {0, 1, 4}) {
      if (first >= n) continue;
      SCOPED_TRACE(n);
      compare_momentum(n, first);
      for (const double decay : {0.0, 0.25}) {
        compare_add_scaled<float>(n, first, decay);
        compare_add_scaled<bf16>(n, first, decay);
      }
    }
  }
}

TEST(CudaMomentum, RecipeSizeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_momentum(24 * 3072 * 768, 0);
  for (const double decay : {0.0, 0.25}) compare_add_scaled<bf16>(24 * 3072 * 768, 0, decay);
}

TEST(CudaMomentum, SumsOfSquaresTellOfNumbersOutOfRange) {
  SKIP_WITHOUT_DEVICE();
  constexpr std::size_t n = 20'011;
  constexpr float largest = std::numeric_limits<float>::max(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {largest, nan}) {
    test::Vector<float> values(n, 1);
    values.back() = value;
    const test::DeviceVector<float> g(values), buf(test::Vector<float>(n, 0)), w(test::Vector<float>(n, 1));
    const test::DeviceVector<bf16> copy(n);
    const test::DeviceSum of_gradient, of_weights, of_decayed;
    cuda::add_scaled<bf16>({}, {w.data(), n}, {copy.data(), n}, Vec<const float>(g.data(), n), 1e10, of_weights.data());
    cuda::add_scaled_with_decay<bf16>({}, {w.data(), n}, {copy.data(), n}, Vec<const float>(g.data(), n), -1e10, 0.1,
                                      of_decayed.data());
    cuda::nesterov_momentum<float>({}, {g.data(), n}, {buf.data(), n}, 0.9, 2, of_gradient.data());
    EXPECT_FALSE(std::isfinite(of_gradient.added()));
    EXPECT_FALSE(std::isfinite(of_weights.added()));
    EXPECT_FALSE(std::isfinite(of_decayed.added()));
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda
