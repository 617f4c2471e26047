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

}  // namespace
}  // namespace nanorun::kernels::portable
