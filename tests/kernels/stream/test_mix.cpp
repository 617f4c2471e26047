#include "kernels/stream/mix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/stream/mix_kinds.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::column_count;
using test::InPlace;
using test::Kind;
using test::ReadFrom;
using test::scalar_count;
using test::Strided;
using test::Term;
using test::To;
using Values = test::Vector<double>;

constexpr double eps = 1.0 / 128;

/// Those of CUDA's tests, and further ones.
const std::vector<Kind> kinds = [] {
  std::vector<Kind> kinds = test::kinds;
  kinds.push_back({.name = "OfANorm",
                   .terms = {{.source = 0, .to = To::d_out, .scalar = {0, -1}, .norm_source = true},
                             {.source = 1, .to = To::accumulate, .scalar = {1, -1}, .column = 2, .norm_source = true}},
                   .norm = true});
  kinds.push_back({.name = "Implied",
                   .terms = {{.source = 0, .to = To::d_out, .scalar = {0, -1}, .norm_source = true},
                             {.source = 1, .to = To::overwrite, .scalar = {1, 2}, .implied = true},
                             {.source = 2, .to = To::accumulate, .column = 1},
                             {.source = 3, .to = To::accumulate, .scalar = {2, -1}, .sigmoid = true}},
                   .norm = true});
  kinds.push_back(
      {.name = "ImpliedBesideTermsWithoutAGradient",
       .terms =
           {{.source = 0, .to = To::nowhere},
            {.source = 1, .to = To::overwrite, .scalar = {1, -1}, .sigmoid = true, .constant = 2, .implied = true}},
       .norm = true});
  return kinds;
}();

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
      if (term.to == To::overwrite) d_sources[term.source] = Strided<T>(c.rows, c.cols);
      terms.push_back(view(term));
    }
  }

  MixTerm<T> view(const Term& term) {
    const Mat<T> d_source = term.to == To::d_out ? d_out.mat() : d_sources[term.source].mat();
    return test::mix_term<T>(term, sources[term.source].mat(), d_source,
                             {.scalars = scalars.data(),
                              .d_scalars = d_scalars.data(),
                              .tokens = tokens.mat().data,
                              .d_tokens = d_tokens.mat().data,
                              .stride = tokens.mat().ld,
                              .rstd = rstd.data()});
  }
};

struct Forward {
  Values out, n, rstd;
};

template <class T>
Forward forward(const Case& c, InPlace in_place = InPlace::no) {
  Tensors<T> in(c);
  Strided<T> separate(c.rows, c.cols), n(c.rows, c.cols);
  Strided<T>& out = in_place == InPlace::yes ? in.sources[0] : separate;
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

/// Sources of implied terms are not numbers. A scaled d_in is half of `from`; g is then left in n.
template <class T>
Gradients backward(const Case& c, ReadFrom read_from = ReadFrom::d_out) {
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
  const test::Vector<T> half{0.5};
  Values twice = c.d_out;
  for (double& x : twice) x *= 2;
  Strided<T> from(c.rows, c.cols, twice), g(c.rows, c.cols);
  MixBackward<T> d_mix{in.d_out.mat(), c.kind.elsewhere ? d_elsewhere.mat() : Mat<T>(), norm};
  if (read_from == ReadFrom::scaled_d_in) {
    d_mix.scaled_d_in = {from.mat(), {half.data()}};
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
    if (term.to == To::accumulate) d.sources[term.source] = test::difference(d.sources[term.source], c.start_source);
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

/// The norm agrees up to rounding: compilers may add the squares up in another order where memory overlaps.
TEST_P(Mix, ForwardMayReplaceASource) {
  const Case c(5, 37, GetParam());
  const Forward expected = forward<double>(c), result = forward<double>(c, InPlace::yes);
  EXPECT_EQ(result.out, expected.out);
  if (!c.kind.norm) return;
  ASSERT_EQ(result.n.size(), expected.n.size());
  for (std::size_t i = 0; i < expected.n.size(); ++i) EXPECT_NEAR(result.n[i], expected.n[i], 1e-13);
}

/// NaN does not count.
TEST_P(Mix, ForwardRaisesTheLargestMagnitudeOfTheNorm) {
  Case c(5, 37, GetParam());
  c.sources[0][2 * c.cols + 7] = -50;
  c.sources[0][4 * c.cols] = std::numeric_limits<double>::quiet_NaN();
  Tensors<double> in(c);
  Strided<double> out(c.rows, c.cols), n(c.rows, c.cols);
  Values rstd(c.rows);
  Values maximum{0.25};
  double largest = 0;
  mix_norm_forward<double>({}, out.mat(), n.mat(), rstd, in.terms, eps, maximum.data());
  for (const double value : n.dense()) largest = std::isnan(value) ? largest : std::max(largest, std::abs(value));
  EXPECT_GT(largest, 3);
  EXPECT_EQ(maximum[0], largest);
  maximum[0] = 99;
  mix_norm_forward<double>({}, out.mat(), n.mat(), rstd, in.terms, eps, maximum.data());
  EXPECT_EQ(maximum[0], 99);
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
    if (!term.has_own_gradient()) continue;
    EXPECT_LT(test::relative_error(d.sources[term.source], d_reference.sources[term.source]), 1e-6);
  }
  EXPECT_LT(test::relative_error(d.tokens, d_reference.tokens), 1e-5);
  // Products of random sign, of which a row adds up `cols` in float, one after another where the compiler does not
  // vectorise: the row's sum has the size of the root of their number, and so many roundings. Rows are added in double.
  const double rounding = std::numeric_limits<float>::epsilon() / 2 * c.cols * std::sqrt(c.rows);
  for (int i = 0; i < scalar_count; ++i) EXPECT_NEAR(d.scalars[i], d_reference.scalars[i], 4 * rounding) << i;
}

/// The gradient of the sum is that of a mix whose terms want none.
TEST_P(Mix, GradientsAreHandedOver) {
  const Case c(5, 37, GetParam());
  const Gradients d = backward<double>(c, ReadFrom::scaled_d_in), expected = backward<double>(c);
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
  Values factor{99};
  in.terms[1].d_source = {};
  in.terms[1].factor_out = factor.data();
  mix_backward<double>({}, {in.d_out.mat()}, in.terms);
  EXPECT_EQ(factor[0], c.scalars[1]);
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

/// Whether mixes share the gradients of their streams.
enum class Streams { apart, shared };

/// Mixes with an implied term, the first stream by numbers per token or a learned
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
    if (m == 2 && i == 0) return {.present = true, .scalar = scalar(2 * mixes), .per_token = {}};
    const int column = (m + i) % column_count;
    return {.present = true,
            .scalar = {},
            .per_token = {by_token.mat().data + column, d_tokens.mat().data + column, by_token.mat().ld}};
  }
  std::vector<MixTerm<double>> terms(int m, Streams streams) {
    const bool shared = streams == Streams::shared;
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
  void backward(Streams streams) {
    std::vector<SharingMix<double>> list;
    for (int m = 0; m < mixes; ++m) {
      mix_backward<double>({}, {.d_out = d_out[m].mat(), .norm = {n[m].mat(), rstd, d_n[m].mat()}, .g = g[m].mat()},
                           terms(m, streams));
      SharingMix<double>& mix = list.emplace_back();
      mix.g = g[m].mat();
      mix.implied.scalars = {scalar(2 * m), scalar(2 * m + 1)};
      for (int i = 0; i < (m == 0 ? 1 : 2); ++i) mix.coefficient[i] = coefficient(m, i);
    }
    if (streams == Streams::apart) return;
    const SharedStream<double> first{.x = x[0].mat(), .d = d[0].mat()};
    const SharedStream<double> second{.x = x[1].mat(), .d = d[1].mat(), .accumulates = true};
    shared_streams_backward<double>({}, {first, second}, list);
  }
};

void expect_near(const Values& values, const Values& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << i;
}

TEST(SharedStreams, GetWhatTheMixesWouldGive) {
  SharingCase apart, shared;
  apart.backward(Streams::apart);
  shared.backward(Streams::shared);
  for (int i = 0; i < 2; ++i) expect_near(shared.d[i].dense(), apart.d[i].dense(), 1e-13);
  expect_near(shared.d_tokens.dense(), apart.d_tokens.dense(), 1e-13);
  expect_near(shared.d_scalars, apart.d_scalars, 1e-11);
  for (const double gradient : shared.d_scalars) EXPECT_NE(gradient, 0);
}

TEST(SharedStreams, OneMayBeAlone) {
  SharingCase both, alone;
  both.backward(Streams::shared);
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
