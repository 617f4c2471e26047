#include "kernels/stream/gain.hpp"

#include <gtest/gtest.h>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr int rows = 9, cols = 37;

template <class T>
Values gained(const Values& values, const Values& gain) {
  Strided<T> n(rows, cols, values), out(rows, cols, values);
  const test::Vector<T> g = test::convert<T>(gain);
  gain_forward<T>({}, out.mat(), n.mat(), g);
  return out.dense();
}

TEST(Gain, MultipliesEveryRow) {
  const Values n = test::random_values(rows * cols, 1), g = test::random_values(cols, 2), result = gained<double>(n, g);
  for (int i = 0; i < rows * cols; ++i) EXPECT_EQ(result[i], n[i] * g[i % cols]);
  EXPECT_LT(test::relative_error(gained<float>(n, g), result), 1e-6);
}

/// In place and not; the gradient of the gain adds up.
TEST(Gain, GradientsMatchFiniteDifferences) {
  Values n = test::random_values(rows * cols, 1), g = test::random_values(cols, 2);
  const Values d_values = test::random_values(rows * cols, 3);
  const auto loss = [&] { return test::inner_product(d_values, gained<double>(n, g)); };
  for (const test::InPlace in_place : {test::InPlace::no, test::InPlace::yes}) {
    Strided<double> d_out(rows, cols, d_values), d_n(rows, cols, n), kept(rows, cols, n);
    Mat<double> to = in_place == test::InPlace::yes ? d_out.mat() : d_n.mat();
    Values d_g(cols, 1);
    gain_backward<double>({}, to, d_g, d_out.mat(), kept.mat(), g);
    for (double& d : d_g) d -= 1;
    test::check_gradient("g", loss, g, d_g);
    test::check_gradient("n", loss, n, in_place == test::InPlace::yes ? d_out.dense() : d_n.dense());
  }
}

/// The layer out = (W diag(g)) n by way of the folded weights.
TEST(Gain, UnfoldedGradientsMatchFiniteDifferences) {
  constexpr int features = 5;
  Values w = test::random_values(features * cols, 4), g = test::random_values(cols, 5);
  const Values d_values = test::random_values(features * cols, 6);
  const auto folded = [&] {
    Strided<double> from(features, cols, w), out(features, cols);
    gain_forward<double>({}, out.mat(), from.mat(), g);
    return out.dense();
  };
  const auto loss = [&] { return test::inner_product(d_values, folded()); };
  for (const Output output : {Output::overwrite, Output::accumulate}) {
    Strided<double> d_folded(features, cols, d_values), weights(features, cols, w);
    const Values start(features * cols, output == Output::accumulate ? 1 : std::numeric_limits<double>::quiet_NaN());
    Strided<double> d_w(features, cols, start);
    Values d_g(cols, 1);
    gain_unfold<double>({}, d_w.mat(), output, d_g, d_folded.mat(), weights.mat(), g);
    for (double& d : d_g) d -= 1;
    Values of_w = d_w.dense();
    if (output == Output::accumulate) of_w = test::difference(of_w, start);
    test::check_gradient("w", loss, w, of_w);
    test::check_gradient("g", loss, g, d_g);
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
