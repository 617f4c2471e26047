#include "kernels/attention/attention_gate.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

/// Inputs of one product, the upstream gradient, and what accumulated outputs start from.
struct Case {
  int tokens, heads, head_dim, groups;
  Output output;
  Values x, s, d_out, start_out, start_x, start_s;

  Case(int tokens, int heads, int head_dim, int groups, Output output)
      : tokens(tokens), heads(heads), head_dim(head_dim), groups(groups), output(output) {
    const std::size_t size = static_cast<std::size_t>(tokens) * width(), factors = tokens * groups;
    x = test::random_values(size, 1);
    s = test::random_values(factors, 2);
    d_out = test::random_values(size, 3);
    start_out = test::random_values(size, 4);
    start_x = test::random_values(size, 5);
    start_s = test::random_values(factors, 6);
  }

  int width() const { return heads * head_dim; }
};

/// What must be written starts poisoned; what is added to starts from `start`.
template <class T>
Strided<T> output(const Case& c, const Values& start) {
  return c.output == Output::accumulate ? Strided<T>(c.tokens, c.width(), start) : Strided<T>(c.tokens, c.width());
}

template <class T>
Values forward(const Case& c) {
  Strided<T> x(c.tokens, c.width(), c.x), s(c.tokens, c.groups, c.s), out = output<T>(c, c.start_out);
  attention_scale_forward<T>({}, out.mat(), x.mat(), s.mat(), c.heads, c.output);
  return out.dense();
}

/// Less the start values of what was added to.
struct Gradients {
  Values x, s;
};

template <class T>
Gradients backward(const Case& c) {
  Strided<T> x(c.tokens, c.width(), c.x), s(c.tokens, c.groups, c.s), d_out(c.tokens, c.width(), c.d_out);
  Strided<T> d_x = output<T>(c, c.start_x), d_s(c.tokens, c.groups, c.start_s);
  attention_scale_backward<T>({}, d_x.mat(), d_s.mat(), d_out.mat(), x.mat(), s.mat(), c.heads, c.output);
  return {c.output == Output::accumulate ? test::difference(d_x.dense(), c.start_x) : d_x.dense(),
          test::difference(d_s.dense(), c.start_s)};
}

class AttentionScale : public testing::TestWithParam<std::pair<int, Output>> {
 protected:
  Case make(int tokens, int head_dim) const { return {tokens, 6, head_dim, GetParam().first, GetParam().second}; }
};

TEST_P(AttentionScale, ForwardIsTheFormula) {
  const Case c = make(5, 7);
  const Values out = forward<double>(c);
  for (int t = 0; t < c.tokens; ++t) {
    for (int j = 0; j < c.width(); ++j) {
      const int i = t * c.width() + j, group = j / c.head_dim / (c.heads / c.groups);
      const double product = c.s[t * c.groups + group] * c.x[i];
      EXPECT_NEAR(out[i], c.output == Output::accumulate ? c.start_out[i] + product : product, 1e-15);
    }
  }
}

TEST_P(AttentionScale, GradientsAreTheDerivatives) {
  Case c = make(4, 5);
  const Gradients d = backward<double>(c);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
  test::check_gradient("x", loss, c.x, d.x);
  test::check_gradient("s", loss, c.s, d.s);
}

TEST_P(AttentionScale, FloatAgreesWithDouble) {
  const Case c = make(100, 128);
  EXPECT_LT(test::relative_error(forward<float>(c), forward<double>(c)), 1e-6);
  const Gradients d = backward<float>(c), exact = backward<double>(c);
  EXPECT_LT(test::relative_error(d.x, exact.x), 1e-6);
  EXPECT_LT(test::relative_error(d.s, exact.s), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Groups, AttentionScale,
                         testing::Values(std::pair(6, Output::overwrite), std::pair(6, Output::accumulate),
                                         std::pair(2, Output::overwrite), std::pair(1, Output::accumulate)));

TEST(AttentionScaleInPlace, OutputsMayReplaceInputs) {
  const Case c(5, 6, 7, 2, Output::overwrite);
  Strided<double> x(c.tokens, c.width(), c.x), s(c.tokens, c.groups, c.s), d_out(c.tokens, c.width(), c.d_out);
  Strided<double> d_s(c.tokens, c.groups, c.start_s);
  attention_scale_backward<double>({}, d_out.mat(), d_s.mat(), d_out.mat(), x.mat(), s.mat(), c.heads,
                                   Output::overwrite);
  const Gradients separate = backward<double>(c);
  EXPECT_EQ(d_out.dense(), separate.x);
  EXPECT_EQ(test::difference(d_s.dense(), c.start_s), separate.s);
  attention_scale_forward<double>({}, x.mat(), x.mat(), s.mat(), c.heads, Output::overwrite);
  EXPECT_EQ(x.dense(), forward<double>(c));
}

/// Inputs of gates on 4 heads from a columns of x and b of u.
struct GateCase {
  static constexpr int heads = 4;
  static constexpr double factor = 2;
  int tokens, a, b;
  Values x, u, w, d_gate, start_x, start_u, start_w;

  GateCase(int tokens, int a, int b)
      : tokens(tokens),
        a(a),
        b(b),
        x(test::random_values(static_cast<std::size_t>(tokens) * a, 1)),
        u(test::random_values(static_cast<std::size_t>(tokens) * b, 2)),
        w(test::random_values(static_cast<std::size_t>(heads) * (a + b), 3)),
        d_gate(test::random_values(static_cast<std::size_t>(tokens) * heads, 4)),
        start_x(test::random_values(x.size(), 5)),
        start_u(test::random_values(u.size(), 6)),
        start_w(test::random_values(w.size(), 7)) {}
};

template <class T>
struct Gate {
  const GateCase& c;
  Strided<T> x, u, w, gate;

  explicit Gate(const GateCase& c)
      : c(c), x(c.tokens, c.a, c.x), u(c.tokens, c.b, c.u), w(c.heads, c.a + c.b, c.w), gate(c.tokens, c.heads) {
    attention_gate_forward<T>({}, gate.mat(), inputs(), w.mat());
  }

  GateInputs<T> inputs() { return {x.mat(), c.b > 0 ? u.mat() : Mat<T>(), c.factor}; }
};

struct GateGradients {
  Values x, u, w;
};

template <class T>
GateGradients backward(const GateCase& c) {
  Gate<T> forward(c);
  Strided<T> d_x(c.tokens, c.a, c.start_x), d_u(c.tokens, c.b, c.start_u), d_w(c.heads, c.a + c.b, c.start_w);
  Strided<T> d_gate(c.tokens, c.heads, c.d_gate);
  attention_gate_backward<T>({}, d_x.mat(), c.b > 0 ? d_u.mat() : Mat<T>(), d_w.mat(), d_gate.mat(), forward.gate.mat(),
                             forward.inputs(), forward.w.mat());
  return {test::difference(d_x.dense(), c.start_x), test::difference(d_u.dense(), c.start_u),
          test::difference(d_w.dense(), c.start_w)};
}

class AttentionGate : public testing::TestWithParam<int> {};

TEST_P(AttentionGate, ForwardIsTheFormula) {
  const GateCase c(5, 3, GetParam());
  const Values gate = Gate<double>(c).gate.dense();
  for (int t = 0; t < c.tokens; ++t) {
    for (int h = 0; h < c.heads; ++h) {
      const double* const w = &c.w[h * (c.a + c.b)];
      double z = 0;
      for (int j = 0; j < c.a; ++j) z += w[j] * c.x[t * c.a + j];
      for (int j = 0; j < c.b; ++j) z += w[c.a + j] * c.u[t * c.b + j];
      EXPECT_NEAR(gate[t * c.heads + h], 2 / (1 + std::exp(-z)), 1e-14);
    }
  }
}

TEST_P(AttentionGate, GradientsAreTheDerivatives) {
  GateCase c(5, 3, GetParam());
  const GateGradients d = backward<double>(c);
  const auto loss = [&] { return test::inner_product(c.d_gate, Gate<double>(c).gate.dense()); };
  test::check_gradient("x", loss, c.x, d.x);
  if (c.b > 0) test::check_gradient("u", loss, c.u, d.u);
  test::check_gradient("w", loss, c.w, d.w);
}

TEST_P(AttentionGate, FloatAgreesWithDouble) {
  const GateCase c(300, 6, GetParam());
  EXPECT_LT(test::relative_error(Gate<float>(c).gate.dense(), Gate<double>(c).gate.dense()), 1e-6);
  const GateGradients d = backward<float>(c), exact = backward<double>(c);
  EXPECT_LT(test::relative_error(d.x, exact.x), 1e-6);
  if (c.b > 0) {
    EXPECT_LT(test::relative_error(d.u, exact.u), 1e-6);
  }
  EXPECT_LT(test::relative_error(d.w, exact.w), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(SecondStream, AttentionGate, testing::Values(0, 6));

TEST(AttentionGateGradients, OnlyThoseWantedAreWritten) {
  const GateCase c(5, 3, 2);
  Gate<double> forward(c);
  Strided<double> d_gate(c.tokens, c.heads, c.d_gate), d_u(c.tokens, c.b, c.start_u);
  attention_gate_backward<double>({}, {}, d_u.mat(), {}, d_gate.mat(), forward.gate.mat(), forward.inputs(),
                                  forward.w.mat());
  EXPECT_EQ(test::difference(d_u.dense(), c.start_u), backward<double>(c).u);
}

}  // namespace
}  // namespace nanorun::kernels::portable
