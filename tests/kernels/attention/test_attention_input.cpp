#include "kernels/attention/attention_input_portable.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::InPlace;
using test::Strided;
using Values = test::Vector<double>;

constexpr double eps = 1.0 / 128;
constexpr int source_rows = 5;  // rows of a table read through the index; fewer than T, so rows repeat

/// How the values are mixed, and how the heads are rotated.
struct Mode {
  enum Source { none, rows, table } source;
  enum Factors { two, interpolate, unit_source } factors;
  bool paired = false;
  bool key_offset = false;
  bool narrow = false;  ///< Q and K have three quarters of the pairs; of these the second half stands still
  bool norms = true;    ///< without, rstd stays NaN
};

/// Inputs of one case, upstream gradient of out, and what the accumulated gradients start from.
struct Case {
  int tokens, heads, head_dim;
  Mode mode;
  Values qkv, cos, sin, lambda, source, d_out, start_lambda, start_source;
  test::Vector<Token> index;

  Case(int tokens, int heads, int head_dim, Mode mode) : tokens(tokens), heads(heads), head_dim(head_dim), mode(mode) {
    const std::size_t size = static_cast<std::size_t>(tokens) * 3 * width();
    qkv = test::random_values(size, 1);
    d_out = test::random_values(size, 2);
    for (const double angle : test::random_values(angle_rows() * head_dim / 2, 3, -4, 4)) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    lambda = mode.factors == Mode::two ? Values{0.7, -0.4} : Values{0.3};
    start_lambda = mode.factors == Mode::two ? Values{2.0, -1.0} : Values{2.0};
    source = test::random_values(n_source_rows() * width(), 4);
    start_source = test::random_values(static_cast<std::size_t>(tokens) * width(), 5);
    for (int t = 0; t < tokens; ++t) index.push_back(static_cast<Token>(t * t % source_rows));
  }

  int width() const { return heads * head_dim; }
  int live() const { return mode.narrow ? head_dim * 3 / 8 : head_dim / 2; }
  int first_still() const { return mode.narrow ? head_dim * 3 / 16 : head_dim / 4; }
  /// Whether column j of a head of q or k is dead.
  bool is_dead(int j) const { return j % (head_dim / 2) >= live(); }
  /// Rows of what the forward pass leaves.
  int rows() const { return mode.key_offset ? tokens + 1 : tokens; }
  /// Whether column j of a head of q or k moves to the next row.
  bool moves(int head, int j) const { return mode.key_offset && head >= heads && j % (head_dim / 2) >= first_still(); }
  int angle_rows() const { return mode.paired ? 2 * tokens : tokens; }
  int n_source_rows() const { return mode.source == Mode::table ? source_rows : tokens; }
  int source_row(int t) const { return mode.source == Mode::table ? index[t] : t; }
  /// u[t, j]
  double second(int t, int j) const { return mode.source == Mode::none ? 0 : source[source_row(t) * width() + j]; }
};

/// The inputs of a case as the op takes them.
template <class T>
struct Inputs {
  const Case& c;
  Strided<T> qkv, cos, sin, source;
  test::Vector<T> lambda;

  explicit Inputs(const Case& c)
      : c(c),
        qkv(c.tokens, 3 * c.width(), c.qkv),
        cos(c.angle_rows(), c.head_dim / 2, c.cos),
        sin(c.angle_rows(), c.head_dim / 2, c.sin),
        source(c.n_source_rows(), c.width(), c.source),
        lambda(test::convert<T>(c.lambda)) {}

  Rotary<T> rotary() {
    Rotary<T> rotary{c.heads, cos.mat(), sin.mat(), c.mode.paired, c.mode.key_offset};
    if (c.mode.narrow) {
      rotary.live_pairs = c.live();
      rotary.still_from = c.first_still();
    }
    rotary.norms = c.mode.norms;
    return rotary;
  }
  ValueResidual<T> residual() {
    ValueResidual<T> residual{
        lambda.data(), c.mode.factors == Mode::interpolate, {}, nullptr, c.mode.factors == Mode::unit_source};
    if (c.mode.source != Mode::none) residual.source = source.mat();
    if (c.mode.source == Mode::table) residual.index = c.index.data();
    return residual;
  }
};

/// out [T, 3 H D] is what attention reads; rows are all that the op leaves.
struct Forward {
  Values out, rows, rstd;
};

template <class T>
Forward forward(const Case& c) {
  Inputs<T> in(c);
  const int width = c.width();
  Strided<T> out(c.rows(), 3 * width), rstd(c.tokens, 2 * c.heads);
  const Mat<T> v_out = out.mat().row_block(0, c.tokens).col_block(2 * width, width);
  attention_input_forward<T>({}, out.mat().col_block(0, 2 * width), v_out, rstd.mat(), in.qkv.mat(), in.rotary(),
                             in.residual(), eps);
  const Values rows = out.dense();
  return {Values(rows.begin(), rows.begin() + c.tokens * 3 * width), rows, rstd.dense()};
}

/// What backward wrote, less the start values of the accumulated gradients.
struct Gradients {
  Values qkv, lambda, source;
};

template <class T>
Gradients backward(const Case& c, InPlace in_place, const Values& d_v_extra = {}, bool values = true) {
  Inputs<T> in(c);
  const Forward saved = forward<T>(c);
  const int width = c.width();
  Strided<T> out(c.rows(), 3 * width, saved.rows), rstd(c.tokens, 2 * c.heads, saved.rstd);
  Strided<T> d_out(c.tokens, 3 * width, c.d_out), separate(c.tokens, 3 * width);
  Strided<T>& d_qkv = in_place == InPlace::yes ? d_out : separate;
  Strided<T> d_q(c.tokens, width), d_k(c.tokens, width), extra(c.tokens, d_v_extra.empty() ? 0 : width, d_v_extra);
  for (int t = 0; t < c.tokens; ++t) {
    std::copy_n(d_out.mat().row(t), width, d_q.mat().row(t));
    std::copy_n(d_out.mat().row(t) + width, width, d_k.mat().row(t));
  }
  auto d_lambda = test::convert<T>(c.start_lambda);
  Strided<T> d_source(c.tokens, width, c.start_source);
  ValueResidualGradients<T> d_residual{d_lambda.data(), {}, {}};
  if (c.mode.source == Mode::rows) d_residual.d_source = d_source.mat();
  if (c.mode.source == Mode::table) d_residual.d_rows = d_source.mat();
  const Mat<T> v = in.qkv.mat().col_block(2 * width, width);
  const Mat<T> qk = out.mat().col_block(0, 2 * width);
  attention_input_backward<T>({}, d_qkv.mat(), d_residual, qk, rstd.mat(), v, d_q.mat(),
                              c.mode.key_offset ? d_k.mat() : d_out.mat().col_block(width, width),
                              values ? d_out.mat().col_block(2 * width, width) : Mat<T>(),
                              d_v_extra.empty() ? Mat<T>() : extra.mat(), in.rotary(), in.residual());
  return {d_qkv.dense(), test::difference(test::convert<double>(d_lambda), c.start_lambda),
          test::difference(d_source.dense(), c.start_source)};
}

class AttentionInput : public testing::TestWithParam<Mode> {};

TEST_P(AttentionInput, QueriesAndKeysAreNormedAndRotated) {
  const Case c(7, 4, 12, GetParam());
  const Forward result = forward<double>(c);
  const int half = c.head_dim / 2;
  const auto expect = [&](int t, int head, int j, double value) {
    const auto at = [&](int row) { return result.rows[(row * 3 * c.heads + head) * c.head_dim + j]; };
    EXPECT_NEAR(at(c.moves(head, j) ? t + 1 : t), value, 1e-14);
    if (t > 0) return;
    EXPECT_NEAR(at(0), value, 1e-14);
  };
  for (int t = 0; t < c.tokens; ++t) {
    for (int head = 0; head < 2 * c.heads; ++head) {
      const int first = t * 3 * c.width() + head * c.head_dim;
      double squares = 0;
      for (int j = 0; j < c.head_dim; ++j) squares += c.is_dead(j) ? 0 : c.qkv[first + j] * c.qkv[first + j];
      const double rstd = c.mode.norms ? 1 / std::sqrt(squares / (2 * c.live()) + eps) : 1;
      const double saved = result.rstd[t * 2 * c.heads + head];
      EXPECT_TRUE(c.mode.norms ? std::abs(saved - rstd) < 1e-14 : std::isnan(saved)) << saved;
      const int position = c.mode.paired ? 2 * t + head % c.heads % 2 : t;
      for (int j = 0; j < half; ++j) {
        const double x1 = c.qkv[first + j] * rstd, x2 = c.qkv[first + j + half] * rstd;
        const double cos = c.cos[position * half + j], sin = c.sin[position * half + j];
        expect(t, head, j, c.is_dead(j) ? 0 : x1 * cos + x2 * sin);
        expect(t, head, j + half, c.is_dead(j) ? 0 : -x1 * sin + x2 * cos);
      }
    }
  }
}

TEST(AttentionInputKeyOffset, NothingElseIsWrittenToTheFurtherRow) {
  const Case c(7, 2, 8, {.source = Mode::none, .factors = Mode::two, .key_offset = true});
  const Forward result = forward<double>(c);
  for (int column = 0; column < 3 * c.width(); ++column) {
    const int head = column / c.head_dim;
    const bool key = head < 2 * c.heads && c.moves(head, column % c.head_dim);
    EXPECT_EQ(std::isnan(result.rows[c.tokens * 3 * c.width() + column]), !key) << column;
  }
}

TEST_P(AttentionInput, QueriesAndKeysMayReplaceTheirProjection) {
  const Case c(7, 4, 12, GetParam());
  const Forward separate = forward<double>(c);
  Inputs<double> in(c);
  Values projected = c.qkv;
  projected.resize(c.rows() * 3 * c.width());
  Strided<double> qkv(c.rows(), 3 * c.width(), projected), v_out(c.tokens, c.width()), rstd(c.tokens, 2 * c.heads);
  const Mat<double> qk = qkv.mat().col_block(0, 2 * c.width());
  attention_input_forward<double>({}, qk, v_out.mat(), rstd.mat(), qkv.mat(), in.rotary(), in.residual(), eps);
  for (int t = 0; t < c.tokens; ++t) {
    const double* out = &separate.out[static_cast<std::size_t>(t) * 3 * c.width()];
    for (int j = 0; j < 2 * c.width(); ++j) ASSERT_EQ(qk.row(t)[j], out[j]);
    for (int j = 0; j < c.width(); ++j) ASSERT_EQ(v_out.mat().row(t)[j], out[2 * c.width() + j]);
  }
}

TEST_P(AttentionInput, ValuesAreMixed) {
  const Case c(7, 4, 12, GetParam());
  const Forward result = forward<double>(c);
  double l0 = c.lambda[0], l1 = 1;
  if (c.mode.factors == Mode::two) l1 = c.lambda[1];
  if (c.mode.factors == Mode::interpolate) {
    l0 = 1 - c.lambda[0];
    l1 = c.lambda[0];
  }
  for (int t = 0; t < c.tokens; ++t) {
    for (int j = 0; j < c.width(); ++j) {
      const int i = (3 * t + 2) * c.width() + j;
      EXPECT_NEAR(result.out[i], l0 * c.qkv[i] + l1 * c.second(t, j), 1e-14);
    }
  }
}

void expect_derivatives(Case c) {
  const Gradients d = backward<double>(c, InPlace::no);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c).out); };
  test::check_gradient("qkv", loss, c.qkv, d.qkv, 1e-7, 1e-5, c.qkv.size());
  test::check_gradient("lambda", loss, c.lambda, d.lambda);
  Values d_source(c.source.size());
  for (std::size_t i = 0; i < d.source.size(); ++i) {
    d_source[c.source_row(static_cast<int>(i / c.width())) * c.width() + i % c.width()] += d.source[i];
  }
  test::check_gradient("source", loss, c.source, d_source);
}

TEST_P(AttentionInput, GradientsAreTheDerivatives) {
  for (const int tokens : {1, 2, 7}) expect_derivatives(Case(tokens, 2, 8, GetParam()));
}

/// Whatever lies in the dead dims of the projection and of the upstream gradient.
TEST(AttentionInputNarrow, DeadDimsAreNotReadAndHaveNoGradient) {
  for (const bool key_offset : {false, true}) {
    Case c(7, 2, 8, {.source = Mode::none, .factors = Mode::two, .key_offset = key_offset, .narrow = true});
    const Forward out = forward<double>(c);
    const Gradients d = backward<double>(c, InPlace::no);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t i = 0; i < c.qkv.size(); ++i) {
      const auto column = static_cast<int>(i % (3 * c.width()));
      if (column >= 2 * c.width() || !c.is_dead(column % c.head_dim)) continue;
      c.qkv[i] = c.d_out[i] = nan;
      EXPECT_EQ(d.qkv[i], 0) << i;
    }
    EXPECT_EQ(forward<double>(c).out, out.out);
    EXPECT_EQ(backward<double>(c, InPlace::no).qkv, d.qkv);
  }
}

/// The first pairs of a head give what a head of that width gives.
TEST(AttentionInputNarrow, IsAHeadOfThatWidth) {
  const Case wide(5, 2, 16, {.source = Mode::none, .factors = Mode::two, .narrow = true});
  Case small(5, 2, 12, {.source = Mode::none, .factors = Mode::two});
  const auto at = [](const Case& c, int head, int j, int cols) {
    return head * cols + j % 6 + (j < 6 ? 0 : c.head_dim / 2);
  };
  for (int t = 0; t < wide.tokens; ++t) {
    for (int j = 0; j < 6; ++j) {
      small.cos[t * 6 + j] = wide.cos[t * 8 + j];
      small.sin[t * 6 + j] = wide.sin[t * 8 + j];
    }
    for (int head = 0; head < 4; ++head) {
      for (int j = 0; j < 12; ++j) {
        small.qkv[t * 72 + at(small, head, j, 12)] = wide.qkv[t * 96 + at(wide, head, j, 16)];
        small.d_out[t * 72 + at(small, head, j, 12)] = wide.d_out[t * 96 + at(wide, head, j, 16)];
      }
    }
  }
  const Forward out = forward<double>(wide), expected = forward<double>(small);
  const Gradients d = backward<double>(wide, InPlace::no), d_expected = backward<double>(small, InPlace::no);
  EXPECT_LT(test::relative_error(out.rstd, expected.rstd), 1e-15);
  for (int t = 0; t < wide.tokens; ++t) {
    for (int head = 0; head < 4; ++head) {
      for (int j = 0; j < 12; ++j) {
        const int i = t * 96 + at(wide, head, j, 16), k = t * 72 + at(small, head, j, 12);
        EXPECT_NEAR(out.out[i], expected.out[k], 1e-14);
        EXPECT_NEAR(d.qkv[i], d_expected.qkv[k], 1e-14);
      }
    }
  }
}

TEST_P(AttentionInput, GradientMayReplaceTheUpstreamGradient) {
  const Case c(7, 2, 8, GetParam());
  const Gradients separate = backward<double>(c, InPlace::no), in_place = backward<double>(c, InPlace::yes);
  EXPECT_EQ(in_place.qkv, separate.qkv);
  EXPECT_EQ(in_place.lambda, separate.lambda);
  EXPECT_EQ(in_place.source, separate.source);
}

TEST_P(AttentionInput, WithoutTheGradientOfValuesTheirColumnsStay) {
  const Case c(7, 2, 8, GetParam());
  const Gradients all = backward<double>(c, InPlace::yes), d = backward<double>(c, InPlace::yes, {}, false);
  for (std::size_t i = 0; i < d.qkv.size(); ++i) {
    const bool is_value = static_cast<int>(i % (3 * c.width())) >= 2 * c.width();
    EXPECT_EQ(d.qkv[i], is_value ? c.d_out[i] : all.qkv[i]) << i;
  }
  EXPECT_EQ(d.lambda, Values(c.lambda.size()));
  EXPECT_EQ(d.source, Values(d.source.size()));
}

TEST_P(AttentionInput, ExtraGradientOfValuesIsAdded) {
  Case c(7, 2, 8, GetParam());
  const Values extra = test::random_values(static_cast<std::size_t>(c.tokens) * c.width(), 6);
  for (const InPlace in_place : {InPlace::no, InPlace::yes}) {
    const Gradients d = backward<double>(c, in_place, extra);
    Case sum = c;
    for (std::size_t i = 0; i < extra.size(); ++i) {
      sum.d_out[(3 * (i / c.width()) + 2) * c.width() + i % c.width()] += extra[i];
    }
    const Gradients expected = backward<double>(sum, InPlace::no);
    EXPECT_EQ(d.qkv, expected.qkv);
    EXPECT_EQ(d.lambda, expected.lambda);
    EXPECT_EQ(d.source, expected.source);
  }
}

TEST_P(AttentionInput, FloatAgreesWithDouble) {
  const Case c(300, 2, 128, GetParam());
  const Forward f = forward<float>(c), reference = forward<double>(c);
  EXPECT_LT(test::relative_error(f.out, reference.out), 1e-6);
  if (c.mode.norms) {
    EXPECT_LT(test::relative_error(f.rstd, reference.rstd), 1e-6);
  }
  const Gradients d = backward<float>(c, InPlace::no), d_reference = backward<double>(c, InPlace::no);
  EXPECT_LT(test::relative_error(d.qkv, d_reference.qkv), 1e-6);
  EXPECT_LT(test::relative_error(d.lambda, d_reference.lambda), 1e-5);
  if (c.mode.source != Mode::none) {
    EXPECT_LT(test::relative_error(d.source, d_reference.source), 1e-6);
  }
}

/// The values are mixed in the place of the projected ones, from which the backward pass has them.
TEST(AttentionInputInPlace, GivesTheSameAsFromTheValuesThemselves) {
  for (const Mode::Factors factors : {Mode::two, Mode::unit_source}) {
    Case c(7, 2, 6, {Mode::none, factors});
    const auto differentiate = [&](InPlace in_place) {
      Inputs<double> in(c);
      ValueResidual<double> residual = in.residual();
      residual.in_place = in_place == InPlace::yes;
      const int width = c.width();
      const Mat<double> v = in.qkv.mat().col_block(2 * width, width);
      Strided<double> qk(c.tokens, 2 * width), rstd(c.tokens, 2 * c.heads), separate(c.tokens, width);
      const Mat<double> v_out = residual.in_place ? v : separate.mat();
      attention_input_forward<double>({}, qk.mat(), v_out, rstd.mat(), in.qkv.mat(), in.rotary(), residual, eps);
      Strided<double> d_qkv(c.tokens, 3 * width, c.d_out), d_q(c.tokens, width, Values(c.tokens * width, 1));
      Values result(c.lambda.size());
      attention_input_backward<double>({}, d_qkv.mat(), {result.data(), {}, {}}, qk.mat(), rstd.mat(), v, d_q.mat(),
                                       d_qkv.mat().col_block(width, width), d_qkv.mat().col_block(2 * width, width), {},
                                       in.rotary(), residual);
      for (int t = 0; t < c.tokens; ++t) result.insert(result.end(), v_out.row(t), v_out.row(t) + width);
      const Values gradient = d_qkv.dense();
      result.insert(result.end(), gradient.begin(), gradient.end());
      return result;
    };
    const Values expected = differentiate(InPlace::no), got = differentiate(InPlace::yes);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-13) << i;
    c.lambda[0] = 0;
    EXPECT_EQ(differentiate(InPlace::yes)[0], 0);
  }
}

TEST(RotaryTable, HoldsTheAnglesOfEveryPosition) {
  const int length = 3000;
  const Values frequency{1, 0.1, 1.0 / 1024, 0};
  const int pairs = static_cast<int>(frequency.size());
  Strided<double> cos(length, pairs), sin(length, pairs);
  Strided<float> cos32(length, pairs), sin32(length, pairs);
  rotary_table<double>({}, cos.mat(), sin.mat(), frequency);
  rotary_table<float>({}, cos32.mat(), sin32.mat(), frequency);
  Values expected_cos, expected_sin;
  for (int t = 0; t < length; ++t) {
    for (const double f : frequency) {
      expected_cos.push_back(std::cos(f * t));
      expected_sin.push_back(std::sin(f * t));
    }
  }
  EXPECT_LT(test::relative_error(cos.dense(), expected_cos), 1e-15);
  EXPECT_LT(test::relative_error(sin.dense(), expected_sin), 1e-15);
  EXPECT_LT(test::relative_error(cos32.dense(), expected_cos), 6e-8);  // a float's rounding, also of large angles
  EXPECT_LT(test::relative_error(sin32.dense(), expected_sin), 6e-8);
}

std::string mode_name(const testing::TestParamInfo<Mode>& info) {
  const char* const sources[] = {"NoSource", "Rows", "Table"};
  const char* const factors[] = {"", "Interpolated", "Unit"};
  return std::string(sources[info.param.source]) + factors[info.param.factors] + (info.param.paired ? "Paired" : "") +
         (info.param.key_offset ? "KeyOffset" : "") + (info.param.narrow ? "Narrow" : "") +
         (info.param.norms ? "" : "WithoutNorm");
}

INSTANTIATE_TEST_SUITE_P(
    Mix, AttentionInput,
    testing::Values(Mode{Mode::none, Mode::two}, Mode{Mode::rows, Mode::two}, Mode{Mode::table, Mode::two},
                    Mode{Mode::none, Mode::interpolate}, Mode{Mode::rows, Mode::interpolate},
                    Mode{Mode::table, Mode::interpolate}, Mode{Mode::none, Mode::unit_source},
                    Mode{Mode::rows, Mode::unit_source},
                    Mode{.source = Mode::table, .factors = Mode::unit_source, .paired = true},
                    Mode{.source = Mode::none, .factors = Mode::unit_source, .key_offset = true},
                    Mode{.source = Mode::table, .factors = Mode::two, .paired = true, .key_offset = true},
                    Mode{.source = Mode::rows, .factors = Mode::unit_source, .paired = true, .narrow = true},
                    Mode{.source = Mode::none, .factors = Mode::two, .key_offset = true, .narrow = true},
                    Mode{.source = Mode::none, .factors = Mode::two, .norms = false},
                    Mode{.source = Mode::rows, .factors = Mode::interpolate, .norms = false}),
    mode_name);

}  // namespace
}  // namespace nanorun::kernels::portable
