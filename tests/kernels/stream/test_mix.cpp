#include "kernels/stream/mix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr double eps = 1.0 / 128;

/// Where the gradient of a term's source goes.
enum class To { nowhere, d_out, adds, replaces };

/// One term: indices of its source, scalars and column of numbers per token; -1: none.
struct Term {
  int source;
  To to = To::nowhere;
  int scalar[2] = {-1, -1};
  bool sigmoid = false;  ///< the first scalar goes through a sigmoid
  int column = -1;
  double constant = 1;
  bool norm_source = false;  ///< the source is a norm
  bool implied = false;
};

struct Kind {
  const char* name;
  std::vector<Term> terms;
  bool norm = false, elsewhere = false;
  bool alone = false;  ///< only the norm is wanted
};

constexpr int scalar_count = 3, column_count = 4;

const std::vector<Kind> kinds = {
    {"OneTerm", {{0, To::d_out, {0, -1}}}},
    {"Residual", {{0, To::d_out, {0, -1}}, {1, To::adds, {1, -1}}}, true, true},
    {"Skip", {{0, To::d_out, {0, -1}}, {1, To::replaces, {0, 2}}, {2, To::adds, {1, -1}}}, true, true},
    {"SkipFromItself", {{0, To::d_out, {0, -1}}, {0, To::d_out, {0, 2}}, {1, To::adds, {1, -1}}}, true},
    {"NormAlone", {{0, To::d_out, {0, -1}}, {1, To::replaces, {1, -1}}}, true, true, true},
    {"Gates", {{0, To::d_out, {-1, -1}, false, -1, 0.5}, {1, To::adds, {0, -1}, true, 1}, {2, To::adds, {-1, 1}}}},
    {"SquareOfAScalar", {{0, To::d_out}, {1, To::replaces, {0, 0}, true, 2, -2.5}}, false, true},
    {"NotToOut", {{0, To::replaces}, {1, To::adds, {0, -1}, false, 0}, {2, To::nowhere, {-1, -1}, false, 3}}, true},
    {"Six",
     {{0, To::d_out, {0, 1}, true, 0},
      {1, To::adds, {-1, -1}, false, 1, 3},
      {2, To::replaces, {1, 2}, true, 1},
      {0, To::d_out, {-1, -1}, false, 2},
      {3, To::adds},
      {4, To::nowhere, {2, -1}, true, 3, -1}},
     true,
     true},
    {"OfANorm", {{0, To::d_out, {0, -1}, false, -1, 1, true}, {1, To::adds, {1, -1}, false, 2, 1, true}}, true},
    {"Implied",
     {{0, To::d_out, {0, -1}, false, -1, 1, true},
      {1, To::replaces, {1, 2}, false, -1, 1, false, true},
      {2, To::adds, {-1, -1}, false, 1},
      {3, To::adds, {2, -1}, true}},
     true},
    {"ImpliedBesideTermsWithoutAGradient",
     {{0, To::nowhere}, {1, To::replaces, {1, -1}, true, -1, 2, false, true}},
     true},
};

const Kind& kind(const std::string& name) {
  return *std::ranges::find_if(kinds, [&](const Kind& one) { return one.name == name; });
}

/// Inputs of one case, upstream gradients, and what the accumulated gradients start from.
struct Case {
  int rows, cols;
  Kind kind;
  std::vector<Values> sources;
  Values scalars, tokens, rstd, d_out, d_n, d_elsewhere, start_source, start_scalars, start_tokens;

  Case(int rows, int cols, const Kind& kind) : rows(rows), cols(cols), kind(kind) {
    const std::size_t size = static_cast<std::size_t>(rows) * cols;
    for (unsigned i = 0; i < max_mix_terms; ++i) sources.push_back(test::random_values(size, i));
    scalars = {0.8, -0.3, 1.7};
    tokens = test::random_values(static_cast<std::size_t>(rows) * column_count, 11);
    rstd = test::random_values(rows, 16);
    for (double& r : rstd) r = std::exp(r);
    d_out = test::random_values(size, 12);
    d_n = test::random_values(size, 13);
    d_elsewhere = test::random_values(size, 14);
    start_source = test::random_values(size, 15);
    start_scalars = {0.5, -2, 3};
    start_tokens = Values(tokens.size(), 1.5);
  }

  double coefficient(const Term& term, int t) const {
    double c = term.constant;
    for (const int i : {0, 1}) {
      if (term.scalar[i] < 0) continue;
      const double s = scalars[term.scalar[i]];
      c *= term.sigmoid && i == 0 ? 1 / (1 + std::exp(-s)) : s;
    }
    if (term.norm_source) c /= rstd[t];
    return term.column < 0 ? c : c * tokens[t * column_count + term.column];
  }
};

/// The tensors of a case as an op takes them, with all gradients.
template <class T>
struct Tensors {
  std::vector<Strided<T>> sources, d_sources;
  test::Vector<T> scalars, d_scalars, rstd;
  Strided<T> tokens, d_tokens, d_out;
  std::vector<MixTerm<T>> terms;

  explicit Tensors(const Case& c)
      : scalars(test::convert<T>(c.scalars)),
        d_scalars(test::convert<T>(c.start_scalars)),
        rstd(test::convert<T>(c.rstd)),
        tokens(c.rows, column_count, c.tokens),
        d_tokens(c.rows, column_count, c.start_tokens),
        d_out(c.kind.alone ? Strided<T>(c.rows, c.cols) : Strided<T>(c.rows, c.cols, c.d_out)) {
    for (const Values& source : c.sources) {
      sources.emplace_back(c.rows, c.cols, source);
      d_sources.emplace_back(c.rows, c.cols, c.start_source);
    }
    for (const Term& term : c.kind.terms) {
      if (term.to == To::replaces) d_sources[term.source] = Strided<T>(c.rows, c.cols);
      terms.push_back(view(term));
    }
  }

  MixTerm<T> view(const Term& term) {
    MixTerm<T> view;
    view.source = sources[term.source].mat();
    if (term.to == To::d_out) {
      view.d_source = d_out.mat();
    } else if (term.to != To::nowhere) {
      view.d_source = d_sources[term.source].mat();
    }
    view.overwrites = term.to == To::replaces;
    view.implied = term.implied;
    if (term.norm_source) view.rstd = rstd.data();
    view.constant = term.constant;
    for (const int i : {0, 1}) {
      if (const int s = term.scalar[i]; s >= 0) view.scalars[i] = {&scalars[s], &d_scalars[s], term.sigmoid && i == 0};
    }
    if (const int k = term.column; k >= 0) {
      view.per_token = {tokens.mat().data + k, d_tokens.mat().data + k, tokens.mat().ld};
    }
    return view;
  }
};

struct Forward {
  Values out, n, rstd;
};

template <class T>
Forward forward(const Case& c, bool in_place = false) {
  Tensors<T> in(c);
  Strided<T> separate(c.rows, c.cols), n(c.rows, c.cols);
  Strided<T>& out = in_place ? in.sources[0] : separate;
  auto rstd = test::poisoned<T>(c.rows);
  if (c.kind.norm) {
    mix_norm_forward<T>({}, out.mat(), n.mat(), rstd, in.terms, eps);
  } else {
    mix_forward<T>({}, out.mat(), in.terms);
  }
  return {out.dense(), n.dense(), test::convert<double>(rstd)};
}

/// What backward wrote, less the start values of the accumulated gradients.
struct Gradients {
  Values d_out, scalars, tokens;
  std::vector<Values> sources;
  Values g;  ///< where it is handed over
};

/// Sources of implied terms are not numbers. `elsewhere`: the gradient comes as half of `from`, and g is left in n.
template <class T>
Gradients backward(const Case& c, bool elsewhere = false) {
  Tensors<T> in(c);
  for (const Term& term : c.kind.terms) {
    if (!term.implied) continue;
    const Mat<T> source = in.sources[term.source].mat();
    for (int t = 0; t < c.rows; ++t) std::fill_n(source.row(t), c.cols, std::numeric_limits<T>::quiet_NaN());
  }
  const Forward saved = forward<T>(c);
  Strided<T> n(c.rows, c.cols, saved.n), d_n(c.rows, c.cols, c.d_n), d_elsewhere(c.rows, c.cols, c.d_elsewhere);
  const auto rstd = test::convert<T>(saved.rstd);
  NormGradient<T> norm;
  if (c.kind.norm) norm = {n.mat(), rstd, d_n.mat(), c.kind.alone};
  const T half = 0.5;
  Values twice = c.d_out;
  for (double& x : twice) x *= 2;
  Strided<T> from(c.rows, c.cols, twice), g(c.rows, c.cols);
  MixBackward<T> d_mix{in.d_out.mat(), c.kind.elsewhere ? d_elsewhere.mat() : Mat<T>(), norm};
  if (elsewhere) {
    d_mix.scaled_d_in = {from.mat(), {&half}};
    d_mix.g = c.kind.norm ? n.mat() : g.mat();
    const Mat<T> d_out = in.d_out.mat();
    for (int t = 0; t < c.rows; ++t) std::fill_n(d_out.row(t), c.cols, std::numeric_limits<T>::quiet_NaN());
  }
  mix_backward<T>({}, d_mix, in.terms);
  Gradients d{in.d_out.dense(),
              test::difference(test::convert<double>(in.d_scalars), c.start_scalars),
              test::difference(in.d_tokens.dense(), c.start_tokens),
              {},
              (c.kind.norm ? n : g).dense()};
  for (const Strided<T>& source : in.d_sources) d.sources.push_back(source.dense());
  for (const Term& term : c.kind.terms) {
    if (term.to == To::adds) d.sources[term.source] = test::difference(d.sources[term.source], c.start_source);
  }
  return d;
}

class Mix : public testing::TestWithParam<Kind> {};

TEST_P(Mix, ForwardIsTheFormula) {
  const Case c(5, 37, GetParam());
  const Forward result = forward<double>(c);
  for (int t = 0; t < c.rows; ++t) {
    double squares = 0;
    for (int i = t * c.cols; i < (t + 1) * c.cols; ++i) {
      double out = 0;
      for (const Term& term : c.kind.terms) out += c.coefficient(term, t) * c.sources[term.source][i];
      squares += out * out;
      EXPECT_NEAR(result.out[i], out, 1e-14);
    }
    if (!c.kind.norm) continue;
    const double rstd = 1 / std::sqrt(squares / c.cols + eps);
    EXPECT_NEAR(result.rstd[t], rstd, 1e-13);
    for (int i = t * c.cols; i < (t + 1) * c.cols; ++i) EXPECT_NEAR(result.n[i], result.out[i] * rstd, 1e-13);
  }
}

TEST_P(Mix, ForwardMayReplaceASource) {
  const Case c(5, 37, GetParam());
  const Forward expected = forward<double>(c), result = forward<double>(c, true);
  EXPECT_EQ(result.out, expected.out);
  if (c.kind.norm) {
    EXPECT_EQ(result.n, expected.n);
  }
}

/// NaN does not count.
TEST_P(Mix, ForwardRaisesTheLargestMagnitudeOfTheNorm) {
  Case c(5, 37, GetParam());
  c.sources[0][2 * c.cols + 7] = -50;
  c.sources[0][4 * c.cols] = std::numeric_limits<double>::quiet_NaN();
  Tensors<double> in(c);
  Strided<double> out(c.rows, c.cols), n(c.rows, c.cols);
  Values rstd(c.rows);
  double maximum = 0.25, largest = 0;
  mix_norm_forward<double>({}, out.mat(), n.mat(), rstd, in.terms, eps, &maximum);
  for (const double value : n.dense()) largest = std::isnan(value) ? largest : std::max(largest, std::abs(value));
  EXPECT_GT(largest, 3);
  EXPECT_EQ(maximum, largest);
  maximum = 99;
  mix_norm_forward<double>({}, out.mat(), n.mat(), rstd, in.terms, eps, &maximum);
  EXPECT_EQ(maximum, 99);
}

TEST_P(Mix, GradientsAreTheDerivatives) {
  Case c(3, 19, GetParam());
  const Gradients d = backward<double>(c);
  const auto loss = [&] {
    const Forward f = forward<double>(c);
    return (c.kind.alone ? 0 : test::inner_product(c.d_out, f.out)) +
           (c.kind.norm ? test::inner_product(c.d_n, f.n) : 0) +
           (c.kind.elsewhere ? test::inner_product(c.d_elsewhere, c.sources[0]) : 0);
  };
  for (const Term& term : c.kind.terms) {
    SCOPED_TRACE(term.source);
    if (term.to == To::nowhere) continue;
    Values gradient = term.to == To::d_out ? d.d_out : d.sources[term.source];
    for (std::size_t i = 0; term.norm_source && i < gradient.size(); ++i) gradient[i] /= c.rstd[i / c.cols];
    test::check_gradient("source", loss, c.sources[term.source], gradient);
  }
  test::check_gradient("scalars", loss, c.scalars, d.scalars);
  test::check_gradient("numbers per token", loss, c.tokens, d.tokens);
}

TEST_P(Mix, FloatAgreesWithDouble) {
  const Case c(600, 768, GetParam());
  const Forward f = forward<float>(c), reference = forward<double>(c);
  EXPECT_LT(test::relative_error(f.out, reference.out), 1e-6);
  if (c.kind.norm) {
    EXPECT_LT(test::relative_error(f.n, reference.n), 1e-6);
    EXPECT_LT(test::relative_error(f.rstd, reference.rstd), 1e-6);
  }
  const Gradients d = backward<float>(c), d_reference = backward<double>(c);
  EXPECT_LT(test::relative_error(d.d_out, d_reference.d_out), 1e-6);
  for (const Term& term : c.kind.terms) {
    if (term.to != To::adds && term.to != To::replaces) continue;
    EXPECT_LT(test::relative_error(d.sources[term.source], d_reference.sources[term.source]), 1e-6);
  }
  EXPECT_LT(test::relative_error(d.tokens, d_reference.tokens), 1e-5);
  // Sums of products of random sign, whose rounding is relative to the root of their number.
  for (int i = 0; i < scalar_count; ++i) {
    EXPECT_NEAR(d.scalars[i], d_reference.scalars[i], 1e-6 * std::sqrt(1.0 * c.rows * c.cols)) << i;
  }
}

/// The gradient of the sum is that of a mix whose terms want none.
TEST_P(Mix, GradientsAreHandedOver) {
  const Case c(5, 37, GetParam());
  const Gradients d = backward<double>(c, true), expected = backward<double>(c);
  Case without = c;
  for (Term& term : without.kind.terms) term.to = To::nowhere;
  EXPECT_EQ(d.g, backward<double>(without).d_out);
  EXPECT_EQ(d.scalars, expected.scalars);
  EXPECT_EQ(d.tokens, expected.tokens);
  EXPECT_EQ(d.sources, expected.sources);
  if (std::ranges::any_of(c.kind.terms, [](const Term& term) { return term.to == To::d_out; })) {
    EXPECT_EQ(d.d_out, expected.d_out);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mix, testing::ValuesIn(kinds),
                         [](const testing::TestParamInfo<Kind>& info) { return std::string(info.param.name); });

TEST(MixBackward, WithoutATermToOutLeavesTheGradientOfOut) {
  const Case c(3, 19, kind("NotToOut"));
  const Gradients d = backward<double>(c);
  EXPECT_EQ(d.d_out, d.sources[0]);  // its coefficient is 1
}

TEST(MixBackward, GradientsThatAreNotWantedAreLeftOut) {
  const Case c(3, 19, kind("Six"));
  const Gradients all = backward<double>(c);
  Tensors<double> in(c);
  const Forward saved = forward<double>(c);
  Strided<double> n(c.rows, c.cols, saved.n), d_n(c.rows, c.cols, c.d_n), d_elsewhere(c.rows, c.cols, c.d_elsewhere);
  for (MixTerm<double>& term : in.terms) {
    for (auto& scalar : term.scalars) scalar.gradient = nullptr;
    term.per_token.gradient = nullptr;
  }
  mix_backward<double>({}, {in.d_out.mat(), d_elsewhere.mat(), {n.mat(), saved.rstd, d_n.mat()}}, in.terms);
  EXPECT_EQ(in.d_out.dense(), all.d_out);
  EXPECT_EQ(in.d_scalars, c.start_scalars);
  EXPECT_EQ(in.d_tokens.dense(), c.start_tokens);
}

TEST(MixBackward, LeavesTheFactorOfATerm) {
  const Case c(3, 19, kind("Residual"));
  Tensors<double> in(c);
  double factor = 99;
  in.terms[1].d_source = {};
  in.terms[1].factor_out = &factor;
  mix_backward<double>({}, {in.d_out.mat()}, in.terms);
  EXPECT_EQ(factor, c.scalars[1]);
}

TEST(MixBackward, AnImpliedTermOfCoefficientZeroGetsNothing) {
  Case c(3, 19, kind("Implied"));
  c.scalars[1] = 0;
  EXPECT_EQ(backward<double>(c).scalars[1], 0);
}

TEST(MixBackward, RefusesImpliedTermsThatItCannotDerive) {
  const Case c(3, 19, kind("Implied"));
  const Forward saved = forward<double>(c);
  Strided<double> n(c.rows, c.cols, saved.n), d_n(c.rows, c.cols, c.d_n);
  const NormGradient<double> norm{n.mat(), saved.rstd, d_n.mat()};
  const auto refuses = [&](const NormGradient<double>& norm, int term) {
    Tensors<double> in(c);
    in.terms[term].implied = true;
    EXPECT_THROW(mix_backward<double>({}, {in.d_out.mat(), {}, norm}, in.terms), std::invalid_argument) << term;
  };
  refuses({}, 1);
  refuses(norm, 0);  // a second one
  refuses(norm, 2);
}

TEST(MixNorm, TheSumItselfNeedNotBeKept) {
  const Case c(5, 37, kind("Residual"));
  const Forward expected = forward<double>(c);
  Tensors<double> in(c);
  Strided<double> n(c.rows, c.cols);
  auto rstd = test::poisoned<double>(c.rows);
  mix_norm_forward<double>({}, Mat<double>(), n.mat(), rstd, in.terms, eps);
  EXPECT_EQ(n.dense(), expected.n);
  EXPECT_EQ(test::convert<double>(rstd), expected.rstd);
}

/// Mixes whose terms are shared, or not. They have an implied term, the first stream by numbers per token or a learned
/// scalar, and all but one the second stream.
struct SharingCase {
  static constexpr int rows = 5, cols = 19, mixes = 3;
  Values tokens = test::random_values(rows * column_count, 1);
  Values scalars = test::random_values(2 * mixes + 1, 2), d_scalars = Values(2 * mixes + 1);
  Strided<double> by_token{rows, column_count, tokens}, d_tokens{rows, column_count, Values(rows*column_count)};
  Strided<double> x[2] = {{rows, cols, test::random_values(rows* cols, 3)},
                          {rows, cols, test::random_values(rows* cols, 4)}};
  Strided<double> d[2] = {{rows, cols, Values(rows* cols)}, {rows, cols, test::random_values(rows* cols, 5)}};
  std::vector<Strided<double>> d_out, n, d_n, g;
  Values rstd = Values(rows, 1.25);

  SharingCase() {
    for (unsigned m = 0; m < mixes; ++m) {
      d_out.emplace_back(rows, cols, test::random_values(rows * cols, 10 + m));
      n.emplace_back(rows, cols, test::random_values(rows * cols, 20 + m));
      d_n.emplace_back(rows, cols, test::random_values(rows * cols, 30 + m));
      g.emplace_back(rows, cols);
    }
  }
  LearnedScalar<double> scalar(int k) { return {&scalars[k], &d_scalars[k]}; }
  MixCoefficient<double> coefficient(int m, int i) {
    if (m == 2 && i == 0) return {true, scalar(2 * mixes), {}};
    const int column = (m + i) % column_count;
    return {true, {}, {by_token.mat().data + column, d_tokens.mat().data + column, by_token.mat().ld}};
  }
  std::vector<MixTerm<double>> terms(int m, bool shared) {
    std::vector<MixTerm<double>> terms(1);
    terms[0].implied = true;
    terms[0].scalars = {scalar(2 * m), scalar(2 * m + 1)};
    for (int i = 0; i < (m == 0 ? 1 : 2); ++i) {
      MixTerm<double>& term = terms.emplace_back();
      const MixCoefficient<double> c = coefficient(m, i);
      term.source = x[i].mat();
      if (!shared) term.d_source = d[i].mat();
      term.shared = shared;
      term.scalars[0] = c.scalar;
      term.per_token = c.per_token;
    }
    return terms;
  }
  void backward(bool shared) {
    std::vector<SharingMix<double>> list;
    for (int m = 0; m < mixes; ++m) {
      mix_backward<double>({}, {.d_out = d_out[m].mat(), .norm = {n[m].mat(), rstd, d_n[m].mat()}, .g = g[m].mat()},
                           terms(m, shared));
      SharingMix<double>& mix = list.emplace_back();
      mix.g = g[m].mat();
      mix.implied.scalars = {scalar(2 * m), scalar(2 * m + 1)};
      for (int i = 0; i < (m == 0 ? 1 : 2); ++i) mix.coefficient[i] = coefficient(m, i);
    }
    if (shared) shared_streams_backward<double>({}, {{{x[0].mat(), d[0].mat()}, {x[1].mat(), d[1].mat(), true}}}, list);
  }
};

void expect_near(const Values& values, const Values& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << i;
}

TEST(SharedStreams, GetWhatTheMixesWouldGive) {
  SharingCase apart, shared;
  apart.backward(false);
  shared.backward(true);
  for (int i = 0; i < 2; ++i) expect_near(shared.d[i].dense(), apart.d[i].dense(), 1e-13);
  expect_near(shared.d_tokens.dense(), apart.d_tokens.dense(), 1e-13);
  expect_near(shared.d_scalars, apart.d_scalars, 1e-11);
  for (const double gradient : shared.d_scalars) EXPECT_NE(gradient, 0);
}

TEST(SharedStreams, OneMayBeAlone) {
  SharingCase both, alone;
  both.backward(true);
  std::vector<SharingMix<double>> list(1);
  list[0].g = alone.d_out[0].mat();
  list[0].coefficient[0] = alone.coefficient(1, 0);
  shared_streams_backward<double>({}, {{{alone.x[0].mat(), alone.d[0].mat()}, {}}}, list);
  for (int t = 0; t < alone.rows; ++t) {
    const double c = alone.coefficient(1, 0).factor(t);
    for (int j = 0; j < alone.cols; ++j) {
      EXPECT_NEAR(alone.d[0].mat().row(t)[j], c * alone.d_out[0].mat().row(t)[j], 1e-14);
    }
  }
}

TEST(MixTerms, AreFromOneToSix) {
  Strided<double> x(2, 3, Values(6, 1)), out(2, 3);
  MixTerm<double> term;
  term.source = x.mat();
  EXPECT_THROW(mix_forward<double>({}, out.mat(), {}), std::invalid_argument);
  EXPECT_THROW(mix_forward<double>({}, out.mat(), std::vector(max_mix_terms + 1, term)), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::portable
