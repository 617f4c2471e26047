#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/optimizer/adam.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

constexpr AdamOptions plain{.lr = 0.1, .t = 3, .gradient_scale = 1.0 / 3};
constexpr AdamOptions with_decay{
    .lr = 0.1, .eps = 1e-3, .t = 3, .gradient_scale = 1.0 / 3, .decay = 0.02, .epsilon_hat = true};

/// The share of the device's elements that are not the host's.
template <class T>
double share_of_others(Tensor<T>& x) {
  const test::Vector<float> device = x.device_values();
  const Vec<float> host = x.host_flat();
  double others = 0;
  for (std::size_t i = 0; i < device.size(); ++i) others += device[i] != host[i];
  return others / static_cast<double>(device.size());
}

/// The state begins `first` elements into its memory. W, M, G: types of masters, moments and gradients; where the first
/// two are bf16, or the options round to it, results that differ by a few float roundings may round to neighbours.
template <class T, class W = float, class M = float, class G = float>
void compare(int n, int first, const AdamOptions& options) {
  SCOPED_TRACE(n);
  Tensor<W> w(1, n, 1);
  Tensor<M> m(1, n, 2), v(1, n, 3, {0.01f, 1});
  Tensor<G> g(1, n, 4);
  const Tensor<bf16> rounded = Tensor<bf16>::poisoned(1, n);
  const test::SumStream stream;
  const test::DeviceSum squares;
  test::Vector<double> host_squares(2);
  const auto tail = [first](const auto& span) { return span.subspan(first); };
  const Vec<float> host_w = tail(w.host_flat());
  portable::adam_update<float>({}, host_w, host_w, tail(m.host_flat()), tail(v.host_flat()), tail(g.host_flat()),
                               options, host_squares.data());
  const auto update = [&](Vec<T> copy) {
    cuda::adam_update<T, W, M, G>(stream, tail(w.device_flat()), copy, tail(m.device_flat()), tail(v.device_flat()),
                                  tail(g.device_flat()), options, squares.data());
  };
  if constexpr (std::is_same_v<T, W>) {
    update(tail(w.device_flat()));
  } else {
    update(tail(rounded.device_flat()));
    rounded.expect_rounded(w, first);
  }
  // A few float roundings of numbers of order 1.
  const double spacing_w = options.round_weights ? 0x1p-7 : 1e-6, spacing_m = options.round_moments ? 0x1p-7 : 1e-6;
  g.expect_match("g", 0, 0);
  m.expect_match("m", 1e-6, spacing_m);
  v.expect_match("v", 1e-6, spacing_m);
  w.expect_match("w", 1e-6, spacing_w);
  EXPECT_LE(share_of_others(w), options.round_weights ? 3e-3 : 1);
  EXPECT_LE(share_of_others(m), options.round_moments ? 3e-3 : 1);
  EXPECT_LE(share_of_others(v), options.round_moments ? 3e-3 : 1);
  const double spacing_squares = options.round_weights || options.round_moments ? 1e-5 : 1e-6;
  for (const int i : {0, 1}) EXPECT_NEAR(squares.added(i), host_squares[i], spacing_squares * host_squares[i]) << i;
}

struct Rounded {
  bool weights = false, moments = false;
};

constexpr AdamOptions rounding(AdamOptions options, Rounded rounded) {
  options.round_weights = rounded.weights;
  options.round_moments = rounded.moments;
  return options;
}

/// All formats that the optimizer keeps masters and moments in.
void compare_formats(int n, int first, const AdamOptions& options) {
  compare<float>(n, first, options);
  compare<bf16>(n, first, options);
  const AdamOptions weights = rounding(options, {.weights = true}), moments = rounding(options, {.moments = true}),
                    both = rounding(options, {.weights = true, .moments = true});
  compare<float>(n, first, both);
  compare<bf16>(n, first, both);
  compare<bf16, bf16>(n, first, weights);
  compare<bf16, bf16>(n, first, both);
  compare<bf16, float, bf16>(n, first, moments);
  compare<bf16, bf16, bf16>(n, first, both);
  compare<bf16, float, float, bf16>(n, first, options);
  compare<bf16, float, bf16, bf16>(n, first, moments);
  compare<bf16, bf16, float, bf16>(n, first, weights);
  compare<bf16, bf16, bf16, bf16>(n, first, both);
}

TEST(CudaAdam, SmallSizesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  AdamOptions clearing = plain;
  clearing.clears_gradient = true;
  AdamOptions with_plain_decay = with_decay;
  with_plain_decay.cautious = false;
  for (const auto& [n, first] : {std::pair{1, 0}, {1003, 0}, {1003, 1}, {4096, 4}, {4096, 8}}) {  // 1: not aligned
    for (const AdamOptions& options : {plain, with_decay, with_plain_decay, clearing})
      compare_formats(n, first, options);
  }
}

TEST(CudaAdam, RecipeSizeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare<bf16>(50304 * 768, 0, plain);
  compare<bf16, bf16, bf16>(50304 * 768, 0, rounding(plain, {.weights = true, .moments = true}));
}

/// The sums of squares, together, of one update whose last gradient and weight are these, all others small.
double squares_with(float gradient, float weight) {
  constexpr std::size_t n = 20'011;
  test::Vector<float> ones(n, 1), gradients(n, 0.5f);
  gradients.back() = gradient;
  ones.back() = weight;
  const test::DeviceVector<float> w(ones), m{test::Vector<float>(n)}, v{test::Vector<float>(n)}, g(gradients);
  const test::DeviceVector<bf16> copy(n);
  const test::SumStream stream;
  const test::DeviceSum squares;
  cuda::adam_update<bf16>(stream, {w.data(), n}, {copy.data(), n}, {m.data(), n}, {v.data(), n}, {g.data(), n},
                          {.lr = 0.25, .t = 1, .gradient_scale = 4}, squares.data());
  return squares.added(0) + squares.added(1);
}

TEST(CudaAdam, SumsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {4001, 10'000'019}) {  // one group of thread blocks, and as many blocks as there are
    test::expect_same_bits([&](Stream stream) {
      const Tensor<float> w(1, n, 1), m(1, n, 2), v(1, n, 3, {0.01f, 1}), g(1, n, 4);
      const Tensor<bf16> copy = Tensor<bf16>::poisoned(1, n);
      const test::DeviceSum squares;
      cuda::adam_update<bf16>(stream, w.device_flat(), copy.device_flat(), m.device_flat(), v.device_flat(),
                              g.device_flat(), plain, squares.data());
      return test::Vector<double>{squares.added(0), squares.added(1)};
    });
  }
}

TEST(CudaAdam, NonFiniteGradientOrWeightIsDetected) {
  SKIP_WITHOUT_DEVICE();
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_LT(squares_with(1, 1), 5 * 20'011);
  EXPECT_NEAR(squares_with(0x1p100f, 0), 0x1p204, 0x1p180) << "beyond the range of a float's square";
  EXPECT_FALSE(std::isfinite(squares_with(0x1p127f, 1))) << "the scaled gradient overflows";
  EXPECT_FALSE(std::isfinite(squares_with(nan, 1)));
  EXPECT_FALSE(std::isfinite(squares_with(1, infinity)));
  EXPECT_FALSE(std::isfinite(squares_with(1, nan)));
}

}  // namespace
}  // namespace nanorun::kernels::cuda
