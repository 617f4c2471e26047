#include "kernels/stream/smear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

/// Inputs of one case, upstream gradient, and what the accumulated gradients start from.
struct Case {
  int rows, cols;
  Values e, w, scale = {0.7}, d_out, start_w, start_scale = {-2};

  Case(int rows, int cols, int gate) : rows(rows), cols(cols) {
    const std::size_t size = static_cast<std::size_t>(rows) * cols;
    e = test::random_values(size, 1);
    w = test::random_values(gate, 2);
    d_out = test::random_values(size, 3);
    start_w = Values(gate, 1.5);
  }
};

template <class T>
Values forward(const Case& c) {
  Strided<T> out(c.rows, c.cols), e(c.rows, c.cols, c.e);
  const auto w = test::convert<T>(c.w), scale = test::convert<T>(c.scale);
  smear_forward<T>({}, out.mat(), e.mat(), w, scale.data());
  return out.dense();
}

/// What backward wrote, less the start values of the accumulated gradients.
struct Gradients {
  Values e, w, scale;
};

template <class T>
Gradients backward(const Case& c) {
  Strided<T> d_e(c.rows, c.cols), d_out(c.rows, c.cols, c.d_out), e(c.rows, c.cols, c.e);
  const auto w = test::convert<T>(c.w), scale = test::convert<T>(c.scale);
  auto d_w = test::convert<T>(c.start_w), d_scale = test::convert<T>(c.start_scale);
  smear_backward<T>({}, d_e.mat(), d_w, d_scale.data(), d_out.mat(), e.mat(), w, scale.data());
  return {d_e.dense(), test::difference(test::convert<double>(d_w), c.start_w),
          test::difference(test::convert<double>(d_scale), c.start_scale)};
}

TEST(Smear, ForwardIsTheFormula) {
  const Case c(5, 37, 12);
  const Values out = forward<double>(c);
  for (int t = 0; t < c.rows; ++t) {
    double sum = 0;
    for (std::size_t j = 0; j < c.w.size(); ++j) sum += c.w[j] * c.e[t * c.cols + j];
    for (int j = 0; j < c.cols; ++j) {
      const double before = t > 0 ? c.e[(t - 1) * c.cols + j] : 0;
      EXPECT_NEAR(out[t * c.cols + j], c.e[t * c.cols + j] + c.scale[0] / (1 + std::exp(-sum)) * before, 1e-14);
    }
  }
}

TEST(Smear, GradientsAreTheDerivatives) {
  for (const auto& [rows, gate] : {std::pair(4, 12), {1, 3}, {3, 19}}) {
    SCOPED_TRACE(rows);
    Case c(rows, 19, gate);
    const Gradients d = backward<double>(c);
    const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
    test::check_gradient("e", loss, c.e, d.e);
    test::check_gradient("w", loss, c.w, d.w);
    test::check_gradient("scale", loss, c.scale, d.scale);
  }
}

TEST(Smear, FloatAgreesWithDouble) {
  const Case c(600, 768, 12);
  EXPECT_LT(test::relative_error(forward<float>(c), forward<double>(c)), 1e-6);
  const Gradients d = backward<float>(c), reference = backward<double>(c);
  EXPECT_LT(test::relative_error(d.e, reference.e), 1e-6);
  // Sums of products of random sign, whose rounding is relative to the root of their number.
  const double tolerance = 1e-6 * std::sqrt(1.0 * c.rows * c.cols);
  EXPECT_NEAR(d.scale[0], reference.scale[0], tolerance);
  for (std::size_t j = 0; j < c.w.size(); ++j) EXPECT_NEAR(d.w[j], reference.w[j], tolerance) << j;
}

TEST(Smear, RefusesWideGates) {
  EXPECT_NO_THROW(forward<float>(Case(2, max_smear_gate, max_smear_gate)));
  EXPECT_THROW(forward<float>(Case(2, 40, max_smear_gate + 1)), std::invalid_argument);
  EXPECT_THROW(backward<float>(Case(2, 8, 9)), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::portable
