#include "kernels/attention/attention_xsa.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::InPlace;
using test::Strided;
using Values = test::Vector<double>;

/// What a layer has. Alpha is one per token and head, or with `learned` one per head, whose rows coincide.
struct Mode {
  bool xsa = false, learned = false, gated = false;
};

/// Inputs of one case, the upstream gradient, and what the accumulated gradient starts from.
struct Case {
  int tokens, heads, head_dim;
  Mode mode;
  Values y, v, alpha, gate, d_out, start_alpha;

  Case(int tokens, int heads, int head_dim, Mode mode) : tokens(tokens), heads(heads), head_dim(head_dim), mode(mode) {
    const std::size_t size = static_cast<std::size_t>(tokens) * width(), alphas = (mode.learned ? 1 : tokens) * heads;
    y = test::random_values(size, 1);
    v = test::random_values(size, 2);
    alpha = test::random_values(alphas, 3);
    gate = test::random_values(static_cast<std::size_t>(tokens) * heads, 4);
    d_out = test::random_values(size, 5);
    start_alpha = test::random_values(alphas, 6);
  }

  int width() const { return heads * head_dim; }
};

/// [tokens, heads] of an alpha or its gradient.
template <class T>
Mat<T> alphas(const Case& c, test::Vector<T>& values) {
  return {values.data(), c.tokens, c.heads, c.mode.learned ? 0 : c.heads};
}

/// The inputs of a case as the op takes them.
template <class T>
struct Inputs {
  const Case& c;
  Strided<T> y, v, gate;
  test::Vector<T> alpha;

  explicit Inputs(const Case& c)
      : c(c),
        y(c.tokens, c.width(), c.y),
        v(c.tokens, c.width(), c.v),
        gate(c.tokens, c.heads, c.gate),
        alpha(test::convert<T>(c.alpha)) {}

  AttentionXsa<T> op() {
    AttentionXsa<T> in{c.heads, y.mat(), {}, {}, {}};
    if (c.mode.xsa) {
      in.v = v.mat();
      in.alpha = alphas(c, alpha);
    }
    if (c.mode.gated) in.gate = gate.mat();
    return in;
  }
};

template <class T>
Values forward(const Case& c) {
  Inputs<T> in(c);
  Strided<T> out(c.tokens, c.width());
  attention_xsa_forward<T>({}, out.mat(), in.op());
  return out.dense();
}

/// Alpha's less its start values; those of what the layer lacks are empty.
struct Gradients {
  Values y, v, alpha, gate, out;
};

template <class T>
Gradients backward(const Case& c, InPlace in_place) {
  Inputs<T> in(c);
  Strided<T> d_out(c.tokens, c.width(), c.d_out), separate(c.tokens, c.width());
  Strided<T> d_v(c.tokens, c.width()), d_gate(c.tokens, c.heads), out(c.tokens, c.width());
  auto d_alpha = test::convert<T>(c.start_alpha);
  Strided<T>& d_y = in_place == InPlace::yes ? d_out : separate;
  AttentionXsaGradients<T> d{d_y.mat(), {}, {}, {}};
  if (c.mode.xsa) {
    d.d_v = d_v.mat();
    d.d_alpha = alphas(c, d_alpha);
  }
  if (c.mode.gated) d.d_gate = d_gate.mat();
  attention_xsa_backward<T>({}, d, out.mat(), d_out.mat(), in.op());
  Gradients result{d_y.dense(), {}, {}, {}, out.dense()};
  if (c.mode.xsa) {
    result.v = d_v.dense();
    result.alpha = test::difference(test::convert<double>(d_alpha), c.start_alpha);
  }
  if (c.mode.gated) result.gate = d_gate.dense();
  return result;
}

class AttentionXsaOp : public testing::TestWithParam<Mode> {};

TEST_P(AttentionXsaOp, ForwardIsTheFormula) {
  Case c(5, 3, 7, GetParam());
  std::fill_n(c.v.begin(), c.head_dim, 1e-5);  // <v, v> below 1e-8
  const Values out = forward<double>(c);
  for (int t = 0; t < c.tokens; ++t) {
    for (int h = 0; h < c.heads; ++h) {
      const int head = t * c.heads + h, first = head * c.head_dim;
      double yv = 0, vv = 0;
      for (int i = first; i < first + c.head_dim; ++i) {
        yv += c.y[i] * c.v[i];
        vv += c.v[i] * c.v[i];
      }
      const double alpha = c.mode.xsa ? c.alpha[c.mode.learned ? h : head] : 0, s = c.mode.gated ? c.gate[head] : 1;
      const double taken = std::tanh(alpha) * yv / std::max(vv, 1e-8);
      for (int i = first; i < first + c.head_dim; ++i) EXPECT_NEAR(out[i], s * (c.y[i] - taken * c.v[i]), 1e-14);
    }
  }
}

TEST_P(AttentionXsaOp, GradientsAreTheDerivatives) {
  Case c(4, 3, 7, GetParam());
  const Gradients d = backward<double>(c, InPlace::no);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
  test::check_gradient("y", loss, c.y, d.y, 1e-7, 1e-5, c.y.size());
  if (c.mode.xsa) {
    test::check_gradient("v", loss, c.v, d.v, 1e-7, 1e-5, c.v.size());
    test::check_gradient("alpha", loss, c.alpha, d.alpha);
  }
  if (c.mode.gated) test::check_gradient("gate", loss, c.gate, d.gate, 1e-7, 1e-5, c.gate.size());
}

TEST_P(AttentionXsaOp, GradientsOfTinyValuesAreTheDerivatives) {
  Case c(4, 3, 7, GetParam());
  for (double& v : c.v) v *= 1e-5;
  const Gradients d = backward<double>(c, InPlace::no);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
  test::check_gradient("y", loss, c.y, d.y);
  if (c.mode.xsa) test::check_gradient("v", loss, c.v, d.v, 1e-7, 1e-8, c.v.size());
}

TEST_P(AttentionXsaOp, BackwardFormsTheOutputAnew) {
  const Case c(5, 3, 7, GetParam());
  EXPECT_EQ(backward<double>(c, InPlace::no).out, forward<double>(c));
}

TEST_P(AttentionXsaOp, OutputsMayReplaceInputs) {
  const Case c(5, 3, 7, GetParam());
  const Gradients separate = backward<double>(c, InPlace::no), in_place = backward<double>(c, InPlace::yes);
  EXPECT_EQ(in_place.y, separate.y);
  EXPECT_EQ(in_place.v, separate.v);
  EXPECT_EQ(in_place.alpha, separate.alpha);
  EXPECT_EQ(in_place.gate, separate.gate);
  Inputs<double> in(c);
  attention_xsa_forward<double>({}, in.y.mat(), in.op());
  EXPECT_EQ(in.y.dense(), forward<double>(c));
}

TEST_P(AttentionXsaOp, FloatAgreesWithDouble) {
  const Case c(300, 6, 128, GetParam());
  EXPECT_LT(test::relative_error(forward<float>(c), forward<double>(c)), 1e-6);
  const Gradients d = backward<float>(c, InPlace::no), exact = backward<double>(c, InPlace::no);
  EXPECT_LT(test::relative_error(d.y, exact.y), 1e-6);
  if (c.mode.xsa) {
    EXPECT_LT(test::relative_error(d.v, exact.v), 1e-6);
    EXPECT_LT(test::relative_error(d.alpha, exact.alpha), 2e-6);
  }
  if (c.mode.gated) {
    EXPECT_LT(test::relative_error(d.gate, exact.gate), 1e-6);
  }
}

std::string mode_name(const testing::TestParamInfo<Mode>& info) {
  const Mode& mode = info.param;
  return std::string(mode.xsa ? "Xsa" : "") + (mode.learned ? "Learned" : "") + (mode.gated ? "Gated" : "");
}

INSTANTIATE_TEST_SUITE_P(Modes, AttentionXsaOp,
                         testing::Values(Mode{.xsa = true}, Mode{.xsa = true, .learned = true}, Mode{.gated = true},
                                         Mode{.xsa = true, .gated = true},
                                         Mode{.xsa = true, .learned = true, .gated = true}),
                         mode_name);

}  // namespace
}  // namespace nanorun::kernels::portable
