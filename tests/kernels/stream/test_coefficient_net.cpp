#include "kernels/stream/coefficient_net.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

/// Factor of a net on its output: constant, or times a learned scalar.
enum class Scale { constant, learned };

/// Inputs of one case, upstream gradient, and what the accumulated gradients start from.
struct Case {
  int rows, cols, hidden, outputs;
  bool learned_scale, sigmoid = false;
  double constant = 1.3;
  Values u, w_in, w_out, bias, scalar = {0.6};
  Values d_c, start_u, start_w_in, start_w_out, start_bias, start_scalar = {-2};

  Case(int rows, int cols, int hidden, int outputs, Scale scale)
      : rows(rows), cols(cols), hidden(hidden), outputs(outputs), learned_scale(scale == Scale::learned) {
    u = values(rows, cols, 1);
    w_in = values(hidden, cols, 2);
    for (double& w : w_in) w *= 4 / std::sqrt(cols);  // gelu's curved part, and where it is flat
    w_out = values(outputs, hidden, 3);
    bias = values(1, outputs, 4);
    d_c = values(rows, outputs, 5);
    start_u = values(rows, cols, 6);
    start_w_in = values(hidden, cols, 7);
    start_w_out = values(outputs, hidden, 8);
    start_bias = values(1, outputs, 9);
  }

  static Values values(int rows, int cols, unsigned seed) {
    return test::random_values(static_cast<std::size_t>(rows) * cols, seed);
  }
};

/// The inputs of a case as the op takes them.
template <class T>
struct Inputs {
  const Case& c;
  Strided<T> u, w_in, w_out;
  test::Vector<T> bias, scalar, d_scalar;

  explicit Inputs(const Case& c)
      : c(c),
        u(c.rows, c.cols, c.u),
        w_in(c.hidden, c.cols, c.w_in),
        w_out(c.outputs, c.hidden, c.w_out),
        bias(test::convert<T>(c.bias)),
        scalar(test::convert<T>(c.scalar)),
        d_scalar(test::convert<T>(c.start_scalar)) {}

  CoefficientNet<T> net() {
    CoefficientNet<T> net{w_in.mat(), w_out.mat(), bias, c.constant, {}};
    if (c.learned_scale) net.scalar = {scalar.data(), d_scalar.data(), c.sigmoid};
    return net;
  }
};

struct Forward {
  Values c, z;
};

template <class T>
Forward forward(const Case& in) {
  Inputs<T> inputs(in);
  Strided<T> c(in.rows, in.outputs), z(in.rows, in.hidden);
  coefficient_net_forward<T>({}, c.mat(), z.mat(), inputs.u.mat(), inputs.net());
  return {c.dense(), z.dense()};
}

/// What backward added.
struct Gradients {
  Values u, w_in, w_out, bias, scalar;
};

template <class T>
Gradients backward(const Case& c) {
  Inputs<T> in(c);
  Strided<T> z(c.rows, c.hidden, forward<T>(c).z), d_c(c.rows, c.outputs, c.d_c), d_z(c.rows, c.hidden);
  Strided<T> d_u(c.rows, c.cols, c.start_u), d_w_in(c.hidden, c.cols, c.start_w_in);
  Strided<T> d_w_out(c.outputs, c.hidden, c.start_w_out);
  auto d_bias = test::convert<T>(c.start_bias);
  coefficient_net_backward<T>({}, d_u.mat(), {d_w_in.mat(), d_w_out.mat(), d_bias}, d_z.mat(), d_c.mat(), z.mat(),
                              in.u.mat(), in.net());
  return {test::difference(d_u.dense(), c.start_u), test::difference(d_w_in.dense(), c.start_w_in),
          test::difference(d_w_out.dense(), c.start_w_out),
          test::difference(test::convert<double>(d_bias), c.start_bias),
          test::difference(test::convert<double>(in.d_scalar), c.start_scalar)};
}

TEST(CoefficientNet, ForwardIsTheFormula) {
  for (const int hidden : {7, 64, 100}) {
    const Case in(5, 37, hidden, 11, Scale::learned);
    const Forward result = forward<double>(in);
    for (int t = 0; t < in.rows; ++t) {
      Values h;
      for (int k = 0; k < hidden; ++k) {
        double z = 0;
        for (int j = 0; j < in.cols; ++j) z += in.w_in[k * in.cols + j] * in.u[t * in.cols + j];
        EXPECT_NEAR(result.z[t * hidden + k], z, 1e-13);
        h.push_back(z * std::erfc(-z / std::numbers::sqrt2) / 2);
      }
      for (int i = 0; i < in.outputs; ++i) {
        double c = in.bias[i];
        for (int k = 0; k < hidden; ++k) c += in.w_out[i * hidden + k] * h[k];
        EXPECT_NEAR(result.c[t * in.outputs + i], in.constant * in.scalar[0] * c, 1e-12);
      }
    }
  }
}

void check_gradients(Case& c) {
  const Gradients d = backward<double>(c);
  const auto loss = [&] { return test::inner_product(c.d_c, forward<double>(c).c); };
  test::check_gradient("u", loss, c.u, d.u);
  test::check_gradient("w_in", loss, c.w_in, d.w_in);
  test::check_gradient("w_out", loss, c.w_out, d.w_out);
  test::check_gradient("bias", loss, c.bias, d.bias);
  test::check_gradient("scalar", loss, c.scalar, d.scalar);
}

TEST(CoefficientNet, GradientsAreTheDerivatives) {
  for (const Scale scale : {Scale::constant, Scale::learned}) {
    SCOPED_TRACE(scale == Scale::learned);
    Case c(4, 19, 10, 5, scale);
    check_gradients(c);
    c.sigmoid = true;
    check_gradients(c);
  }
}

TEST(CoefficientNet, ScaleOfZeroHasAGradient) {
  Case c(4, 19, 10, 5, Scale::learned);
  c.scalar = {0};
  check_gradients(c);
}

TEST(CoefficientNet, FloatAgreesWithDouble) {
  const Case c(600, 768, 64, 41, Scale::learned);
  const Forward f = forward<float>(c), reference = forward<double>(c);
  EXPECT_LT(test::relative_error(f.z, reference.z), 1e-6);
  EXPECT_LT(test::relative_error(f.c, reference.c), 1e-6);
  const Gradients d = backward<float>(c), d_reference = backward<double>(c);
  EXPECT_LT(test::relative_error(d.u, d_reference.u), 2e-6);
  EXPECT_LT(test::relative_error(d.w_in, d_reference.w_in), 2e-6);
  EXPECT_LT(test::relative_error(d.w_out, d_reference.w_out), 2e-6);
  EXPECT_LT(test::relative_error(d.bias, d_reference.bias), 1e-6);
  // A sum of products of random sign, whose rounding is relative to the root of their number.
  EXPECT_NEAR(d.scalar[0], d_reference.scalar[0], 1e-6 * std::sqrt(1.0 * c.rows * c.outputs * c.hidden));
}

}  // namespace
}  // namespace nanorun::kernels::portable
