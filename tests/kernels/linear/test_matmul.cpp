#include "kernels/linear/matmul.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

/// Layer shapes: x [m, k], w [n, k], out and h [m, n]; the layer after h has w_next [p, n] and output [m, p].
struct Shape {
  int m, k, n, p;
};
constexpr Shape small{5, 7, 6, 4}, large{33, 192, 160, 96};

template <class T>
Values linear(const Shape& s, const Values& x_values, const Values& w_values) {
  Strided<T> out(s.m, s.n), x(s.m, s.k, x_values), w(s.n, s.k, w_values);
  linear_forward<T>({}, out.mat(), x.mat(), w.mat());
  return out.dense();
}

template <class T>
Values linear_add(const Shape& s, const Values& start, const Values& x_values, const Values& w_values) {
  Strided<T> out(s.m, s.n, start), x(s.m, s.k, x_values), w(s.n, s.k, w_values);
  linear_forward<T>({}, out.mat(), x.mat(), w.mat(), Output::accumulate);
  return out.dense();
}

template <class T>
Values backward_input(const Shape& s, const Values& d_out_values, const Values& w_values) {
  Strided<T> d_x(s.m, s.k), d_out(s.m, s.n, d_out_values), w(s.n, s.k, w_values);
  linear_backward_input<T>({}, d_x.mat(), d_out.mat(), w.mat());
  return d_x.dense();
}

template <class T>
Values add_backward_weight(const Shape& s, const Values& start, const Values& d_out_values, const Values& x_values) {
  Strided<T> d_w(s.n, s.k, start), d_out(s.m, s.n, d_out_values), x(s.m, s.k, x_values);
  linear_backward_weight<T>({}, d_w.mat(), d_out.mat(), x.mat(), Output::accumulate);
  return d_w.dense();
}

template <class T>
Values backward_weight(const Shape& s, const Values& d_out_values, const Values& x_values) {
  Strided<T> d_w(s.n, s.k), d_out(s.m, s.n, d_out_values), x(s.m, s.k, x_values);
  linear_backward_weight<T>({}, d_w.mat(), d_out.mat(), x.mat(), Output::overwrite);
  return d_w.dense();
}

template <class T>
Values relu2(const Shape& s, const Values& x_values, const Values& w_values) {
  Strided<T> h(s.m, s.n), x(s.m, s.k, x_values), w(s.n, s.k, w_values);
  linear_relu2_forward<T>({}, h.mat(), x.mat(), w.mat());
  return h.dense();
}

template <class T>
Values relu2_backward(const Shape& s, const Values& d_out_values, const Values& w_next_values, const Values& h_values) {
  Strided<T> d_z(s.m, s.n), d_out(s.m, s.p, d_out_values), w_next(s.p, s.n, w_next_values), h(s.m, s.n, h_values);
  linear_relu2_backward<T>({}, d_z.mat(), d_out.mat(), w_next.mat(), h.mat());
  return d_z.dense();
}

/// Random tensors of a shape.
struct Data {
  explicit Data(const Shape& s)
      : x(test::random_values(s.m * s.k, 1)),
        w(test::random_values(s.n * s.k, 2)),
        w_next(test::random_values(s.p * s.n, 3)),
        d_out(test::random_values(s.m * s.n, 4)),
        d_next(test::random_values(s.m * s.p, 5)),
        start_out(test::random_values(s.m * s.n, 6)),
        start_w(test::random_values(s.n * s.k, 7)) {}
  Values x, w, w_next, d_out, d_next, start_out, start_w;
};

TEST(Matmul, ForwardsAreTheFormulas) {
  const Shape s = small;
  const Data data(s);
  const Values out = linear<double>(s, data.x, data.w);
  const Values sum = linear_add<double>(s, data.start_out, data.x, data.w);
  const Values h = relu2<double>(s, data.x, data.w);
  for (int i = 0; i < s.m; ++i) {
    for (int j = 0; j < s.n; ++j) {
      double z = 0;
      for (int k = 0; k < s.k; ++k) z += data.x[i * s.k + k] * data.w[j * s.k + k];
      const double positive = std::max(z, 0.0);
      EXPECT_NEAR(out[i * s.n + j], z, 1e-14);
      EXPECT_NEAR(sum[i * s.n + j], data.start_out[i * s.n + j] + z, 1e-14);
      EXPECT_NEAR(h[i * s.n + j], positive * positive, 1e-14);
    }
  }
}

/// The factor takes the place of one that d_out has.
TEST(Matmul, GradientsMayHaveAFactor) {
  const Shape s = small;
  const Data data(s);
  const Values factor{-0.25};
  const auto scaled = [&](Values values) {
    for (double& x : values) x *= factor[0];
    return values;
  };
  Strided<double> d_x(s.m, s.k), d_w(s.n, s.k), sum(s.n, s.k, data.start_w), d_z(s.m, s.n);
  Strided<double> d_out(s.m, s.n, data.d_out), d_next(s.m, s.p, data.d_next), x(s.m, s.k, data.x), w(s.n, s.k, data.w);
  Strided<double> w_next(s.p, s.n, data.w_next), h(s.m, s.n, relu2<double>(s, data.x, data.w));
  linear_backward_input<double>({}, d_x.mat(), d_out.mat(), w.mat(), factor.data());
  linear_backward_weight<double>({}, d_w.mat(), d_out.mat(), x.mat(), Output::overwrite, factor.data());
  linear_backward_weight<double>({}, sum.mat(), d_out.mat(), x.mat(), Output::accumulate, factor.data());
  linear_relu2_backward<double>({}, d_z.mat(), d_next.mat(), w_next.mat(), h.mat(), factor.data());
  EXPECT_LT(test::relative_error(d_x.dense(), backward_input<double>(s, scaled(data.d_out), data.w)), 1e-15);
  EXPECT_LT(test::relative_error(d_w.dense(), backward_weight<double>(s, scaled(data.d_out), data.x)), 1e-15);
  EXPECT_LT(test::relative_error(sum.dense(), add_backward_weight<double>(s, data.start_w, scaled(data.d_out), data.x)),
            1e-15);
  EXPECT_LT(test::relative_error(d_z.dense(), relu2_backward<double>(s, scaled(data.d_next), data.w_next, h.dense())),
            1e-15);
}

TEST(Matmul, LinearGradientsAreTheDerivatives) {
  const Shape s = small;
  Data data(s);
  const auto loss = [&] { return test::inner_product(data.d_out, linear<double>(s, data.x, data.w)); };
  test::check_gradient("x", loss, data.x, backward_input<double>(s, data.d_out, data.w));
  test::check_gradient("w", loss, data.w, backward_weight<double>(s, data.d_out, data.x));
  const Values sum = add_backward_weight<double>(s, data.start_w, data.d_out, data.x);
  test::check_gradient("w", loss, data.w, test::difference(sum, data.start_w));
}

TEST(Matmul, SquaredReluGradientsAreTheDerivatives) {
  const Shape s = small, next{s.m, s.n, s.p, 0};
  Data data(s);
  const auto loss = [&] {
    const Values h = relu2<double>(s, data.x, data.w);
    return test::inner_product(data.d_next, linear<double>(next, h, data.w_next));
  };
  const Values h = relu2<double>(s, data.x, data.w);
  EXPECT_GT(std::count(h.begin(), h.end(), 0.0), 0);
  const Values d_z = relu2_backward<double>(s, data.d_next, data.w_next, h);
  test::check_gradient("x", loss, data.x, backward_input<double>(s, d_z, data.w));
  test::check_gradient("w", loss, data.w, backward_weight<double>(s, d_z, data.x));
}

TEST(Matmul, FloatAgreesWithDouble) {
  const Shape s = large;
  const Data d(s);
  const auto agree = [](const Values& as_float, const Values& as_double) {
    EXPECT_LT(test::relative_error(as_float, as_double), 1e-6);
  };
  agree(linear<float>(s, d.x, d.w), linear<double>(s, d.x, d.w));
  agree(linear_add<float>(s, d.start_out, d.x, d.w), linear_add<double>(s, d.start_out, d.x, d.w));
  agree(backward_input<float>(s, d.d_out, d.w), backward_input<double>(s, d.d_out, d.w));
  agree(backward_weight<float>(s, d.d_out, d.x), backward_weight<double>(s, d.d_out, d.x));
  agree(add_backward_weight<float>(s, d.start_w, d.d_out, d.x),
        add_backward_weight<double>(s, d.start_w, d.d_out, d.x));
  agree(relu2<float>(s, d.x, d.w), relu2<double>(s, d.x, d.w));
  const Values h = relu2<double>(s, d.x, d.w);
  agree(relu2_backward<float>(s, d.d_next, d.w_next, h), relu2_backward<double>(s, d.d_next, d.w_next, h));
}

}  // namespace
}  // namespace nanorun::kernels::portable
