#include "kernels/linear/fp8_linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/linear/matmul.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr int rows = 33, width = 20, hidden = 70;

/// n [rows, width]; w_in [hidden, width]; w_out [width, hidden]; d_out [rows, width], and a factor on it.
struct Problem {
  test::Vector<double> n = test::random_values(rows * width, 1, -2, 2);
  test::Vector<double> w_in = test::random_values(hidden * width, 2, -0.3, 0.3);
  test::Vector<double> w_out = test::random_values(width * hidden, 3, -0.1, 0.1);
  test::Vector<double> d_out = test::random_values(rows * width, 4, -0.02, 0.02);
  double factor = -1.5;
  Fp8Format format = Fp8Format::e5m2;
  // Scales, some of which are too small for the largest elements.
  double n_scale = 1.0 / 256, w_in_scale = 0.3 / 448, h_scale = 0.01, w_out_scale = 0.08 / 448, d_out_scale = 4e-7,
         d_hidden_scale = 2e-8;
};

/// All that the two passes make, and what saturates of n, h, d_out and d_z.
struct Result {
  test::Vector<double> hq, out, dq, d_w_in, d_w_out, d_n;
  double largest_h = 0, largest_d_z = 0;
  test::Vector<std::uint64_t> saturated = test::Vector<std::uint64_t>(4);
};

enum Maximum { of_n, of_w_in, of_h, of_w_out, of_d_out, of_d_hidden };
enum Factor { n_w_in, inverse_h, h_w_out, only_h, d_out_w_out, inverse_d, d_out_h, d_n, d_w_in };

template <class T>
Mat<T> matrix(test::Vector<T>& values, int m, int n) {
  return {values.data(), m, n};
}

/// Both passes in the memory of one type.
template <class T>
class Passes {
 public:
  /// What is added to begins with `before`.
  Passes(const Problem& p, Output output, double before) : p_(p), output_(output) {
    if (output == Output::overwrite) return;
    for (test::Vector<T>* const values : {&out_, &d_w_in_, &d_w_out_, &d_n_}) {
      std::ranges::fill(*values, static_cast<T>(before));
    }
  }

  Result run() {
    quantise();
    forward_and_backward();
    r_.hq = test::convert<double>(hq_);
    r_.out = test::convert<double>(out_);
    r_.dq = test::convert<double>(dq_);
    r_.d_w_in = test::convert<double>(d_w_in_);
    r_.d_w_out = test::convert<double>(d_w_out_);
    r_.d_n = test::convert<double>(d_n_);
    r_.largest_h = largest_[0];
    r_.largest_d_z = largest_[1];
    return r_;
  }

 private:
  Fp8Scale<T> scale(Maximum of) const { return {&maxima_[of]}; }
  T* factor(Factor of) { return &factors_[of]; }

  void quantise() {
    const Fp8Quantisation<T> quantisations[] = {{.x = matrix(n_, rows, width),
                                                 .q = matrix(xq_, rows, width),
                                                 .q_t = matrix(xt_, width, rows),
                                                 .scale = scale(of_n),
                                                 .saturated = &r_.saturated[0]},
                                                {.x = matrix(w_in_, hidden, width),
                                                 .q = matrix(w1_, hidden, width),
                                                 .q_t = matrix(w1t_, width, hidden),
                                                 .scale = scale(of_w_in)},
                                                {.x = matrix(w_out_, width, hidden),
                                                 .q = matrix(w2_, width, hidden),
                                                 .q_t = matrix(w2t_, hidden, width),
                                                 .scale = scale(of_w_out)},
                                                {.x = matrix(d_out_, rows, width),
                                                 .q = matrix(gq_, rows, width),
                                                 .q_t = matrix(gt_, width, rows),
                                                 .scale = scale(of_d_out),
                                                 .format = p_.format,
                                                 .factor = one_.data(),
                                                 .saturated = &r_.saturated[2]}};
    const Fp8Factor<T> products[] = {{factor(n_w_in), scale(of_n), scale(of_w_in)},
                                     {.to = factor(inverse_h), .a = scale(of_h), .inverse = true},
                                     {factor(h_w_out), scale(of_h), scale(of_w_out)},
                                     {.to = factor(only_h), .a = scale(of_h)},
                                     {factor(d_out_w_out), scale(of_d_out), scale(of_w_out)},
                                     {.to = factor(inverse_d), .a = scale(of_d_hidden), .inverse = true},
                                     {factor(d_out_h), scale(of_d_out), scale(of_h)},
                                     {factor(d_n), scale(of_d_hidden), scale(of_n)},
                                     {factor(d_w_in), scale(of_d_hidden), scale(of_w_in)}};
    fp8_quantise<T>({}, quantisations, products);
  }

  void forward_and_backward() {
    const auto e4m3 = Fp8Format::e4m3;
    fp8_relu2_forward<T>({}, matrix(hq_, rows, hidden), {factor(inverse_h), &largest_[0], &r_.saturated[1]},
                         matrix(xq_, rows, width), matrix(w1_, hidden, width), factor(n_w_in));
    fp8_linear_forward<T>({}, matrix(out_, rows, width), matrix(hq_, rows, hidden), matrix(w2_, width, hidden),
                          factor(h_w_out), output_);
    fp8_relu2_backward<T>({}, matrix(dq_, rows, hidden), {factor(inverse_d), &largest_[1], &r_.saturated[3]},
                          matrix(gq_, rows, width), p_.format, matrix(w2t_, hidden, width), factor(d_out_w_out),
                          matrix(hq_, rows, hidden), factor(only_h));
    fp8_linear_backward_weight<T>({}, matrix(d_w_out_, width, hidden), true, matrix(hq_, rows, hidden), e4m3,
                                  matrix(gt_, width, rows), p_.format, factor(d_out_h), output_, {});
    fp8_linear_backward_weight<T>({}, matrix(d_w_in_, hidden, width), false, matrix(dq_, rows, hidden), p_.format,
                                  matrix(xt_, width, rows), e4m3, factor(d_n), output_, {});
    fp8_linear_backward_input<T>({}, matrix(d_n_, rows, width), matrix(dq_, rows, hidden), p_.format,
                                 matrix(w1t_, width, hidden), factor(d_w_in), output_);
  }

  static test::Vector<T> poisoned(int size) { return test::poisoned<T>(size); }

  const Problem& p_;
  Output output_;
  Result r_;
  test::Vector<T> n_ = test::convert<T>(p_.n), w_in_ = test::convert<T>(p_.w_in), w_out_ = test::convert<T>(p_.w_out),
                  d_out_ = test::convert<T>(p_.d_out);
  test::Vector<T> maxima_ =
      test::convert<T>(test::Vector<double>{448 * p_.n_scale, 448 * p_.w_in_scale, 448 * p_.h_scale,
                                            448 * p_.w_out_scale, 448 * p_.d_out_scale, 448 * p_.d_hidden_scale});
  test::Vector<T> factors_ = poisoned(9), one_{static_cast<T>(p_.factor)}, largest_ = test::Vector<T>(2);
  test::Vector<T> xq_ = poisoned(rows * width), xt_ = xq_, gq_ = xq_, gt_ = xq_, out_ = xq_, d_n_ = xq_;
  test::Vector<T> w1_ = poisoned(hidden * width), w1t_ = w1_, w2_ = w1_, w2t_ = w1_, d_w_in_ = w1_, d_w_out_ = w1_;
  test::Vector<T> hq_ = poisoned(rows * hidden), dq_ = hq_;
};

template <class T>
Result compute(const Problem& p, Output output = Output::overwrite, double before = 0) {
  return Passes<T>(p, output, before).run();
}

/// The value in 8 bits of a / s, by the table of the format's values; counts those beyond it.
double quantised(double a, double scale, Fp8Format format, std::uint64_t* saturated = nullptr) {
  const float value = static_cast<float>(a) * (1 / static_cast<float>(scale));
  if (saturated) *saturated += std::abs(value) > (format == Fp8Format::e4m3 ? 464 : 61440);
  if (format == Fp8Format::e4m3) return test::e4m3.round(value);
  return test::e5m2.round(std::min(std::max(value, -57344.0f), 57344.0f));  // the table goes on to infinity
}

/// The definition, one element at a time.
Result naive(const Problem& p) {
  Result r;
  const auto e4m3 = Fp8Format::e4m3;
  const auto s = [](double scale) { return static_cast<double>(static_cast<float>(scale)); };
  test::Vector<double> x, w1, w2, g;
  for (const double a : p.n) x.push_back(s(p.n_scale) * quantised(a, p.n_scale, e4m3, &r.saturated[0]));
  for (const double a : p.w_in) w1.push_back(s(p.w_in_scale) * quantised(a, p.w_in_scale, e4m3));
  for (const double a : p.w_out) w2.push_back(s(p.w_out_scale) * quantised(a, p.w_out_scale, e4m3));
  for (const double a : p.d_out) {
    const float scaled = static_cast<float>(a) * static_cast<float>(p.factor);
    g.push_back(s(p.d_out_scale) * quantised(scaled, p.d_out_scale, p.format, &r.saturated[2]));
  }
  r.hq.resize(rows * hidden);
  r.dq.resize(rows * hidden);
  r.out.resize(rows * width);
  r.d_n.resize(rows * width);
  r.d_w_in.resize(hidden * width);
  r.d_w_out.resize(hidden * width);
  for (int t = 0; t < rows; ++t) {
    for (int i = 0; i < hidden; ++i) {
      double z = 0, d = 0;
      for (int j = 0; j < width; ++j) z += x[t * width + j] * w1[i * width + j];
      for (int j = 0; j < width; ++j) d += g[t * width + j] * w2[j * hidden + i];
      const double h = z > 0 ? z * z : 0, hq = quantised(h, p.h_scale, e4m3, &r.saturated[1]);
      const double d_z = 2 * d * std::sqrt(s(p.h_scale) * hq);
      const double dq = quantised(d_z, p.d_hidden_scale, p.format, &r.saturated[3]);
      r.largest_h = std::max(r.largest_h, h);
      r.largest_d_z = std::max(r.largest_d_z, std::abs(d_z));
      r.hq[t * hidden + i] = hq;
      r.dq[t * hidden + i] = dq;
      for (int j = 0; j < width; ++j) {
        r.out[t * width + j] += s(p.h_scale) * hq * w2[j * hidden + i];
        r.d_w_out[j * hidden + i] += g[t * width + j] * s(p.h_scale) * hq;
        r.d_w_in[i * width + j] += s(p.d_hidden_scale) * dq * x[t * width + j];
        r.d_n[t * width + j] += s(p.d_hidden_scale) * dq * w1[i * width + j];
      }
    }
  }
  return r;
}

void expect_near(const Result& actual, const Result& expected, double tolerance) {
  EXPECT_LT(test::relative_error(actual.hq, expected.hq), tolerance) << "hq";
  EXPECT_LT(test::relative_error(actual.out, expected.out), tolerance) << "out";
  EXPECT_LT(test::relative_error(actual.dq, expected.dq), tolerance) << "dq";
  EXPECT_LT(test::relative_error(actual.d_w_in, expected.d_w_in), tolerance) << "d_w_in";
  EXPECT_LT(test::relative_error(actual.d_w_out, expected.d_w_out), tolerance) << "d_w_out";
  EXPECT_LT(test::relative_error(actual.d_n, expected.d_n), tolerance) << "d_n";
  EXPECT_NEAR(actual.largest_h, expected.largest_h, tolerance * expected.largest_h);
  EXPECT_NEAR(actual.largest_d_z, expected.largest_d_z, tolerance * expected.largest_d_z);
}

TEST(Fp8Linear, EqualsTheEmulationByTables) {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    Problem p;
    p.format = format;
    if (format == Fp8Format::e4m3) {
      p.d_out_scale = 0.025 / 448;
      p.d_hidden_scale = 3e-6;
    }
    const Result expected = naive(p), result = compute<double>(p);
    expect_near(result, expected, 1e-6);
    EXPECT_EQ(result.saturated, expected.saturated);
    for (const std::uint64_t count : expected.saturated)
      EXPECT_GT(count, 0u) << "every operand must saturate somewhere";
    // In fp32 a value within rounding error of a midpoint may fall to the other side.
    expect_near(compute<float>(p), expected, 2e-2);
  }
}

TEST(Fp8Linear, AddsToWhatIsThere) {
  const Problem p;
  const Result alone = compute<double>(p), added = compute<double>(p, Output::accumulate, 3);
  const auto expect_more = [](const test::Vector<double>& with, const test::Vector<double>& without) {
    for (std::size_t i = 0; i < with.size(); ++i) EXPECT_NEAR(with[i], without[i] + 3, 1e-12);
  };
  expect_more(added.out, alone.out);
  expect_more(added.d_w_in, alone.d_w_in);
  expect_more(added.d_w_out, alone.d_w_out);
  expect_more(added.d_n, alone.d_n);
}

/// hq and what is found on the way are the same whether h is kept or not, and h is what hq is made of.
template <class T>
void check_kept_hidden_units() {
  const Problem p;
  test::Vector<T> n = test::convert<T>(p.n), w = test::convert<T>(p.w_in);
  test::Vector<T> xq = test::poisoned<T>(rows * width), wq = test::poisoned<T>(hidden * width);
  test::Vector<T> maxima = test::convert<T>(test::Vector<double>{448 * p.n_scale, 448 * p.w_in_scale, 448 * p.h_scale});
  test::Vector<T> factors = test::poisoned<T>(2);
  const Fp8Quantisation<T> quantisations[] = {
      {.x = matrix(n, rows, width), .q = matrix(xq, rows, width), .scale = {&maxima[0]}},
      {.x = matrix(w, hidden, width), .q = matrix(wq, hidden, width), .scale = {&maxima[1]}}};
  const Fp8Factor<T> products[] = {{&factors[0], {&maxima[0]}, {&maxima[1]}},
                                   {.to = &factors[1], .a = {&maxima[2]}, .inverse = true}};
  fp8_quantise<T>({}, quantisations, products);
  struct Kept {
    test::Vector<T> hq = test::poisoned<T>(rows * hidden), h = test::poisoned<T>(rows * (hidden + 3));
    test::Vector<T> largest{0};
    test::Vector<std::uint64_t> saturated{0};
  };
  const auto run = [&](bool keeps_hq, bool keeps_h) {
    Kept kept;
    fp8_relu2_forward<T>({}, keeps_hq ? matrix(kept.hq, rows, hidden) : Mat<T>(),
                         {&factors[1], kept.largest.data(), kept.saturated.data()}, matrix(xq, rows, width),
                         matrix(wq, hidden, width), &factors[0],
                         keeps_h ? Mat<T>(kept.h.data(), rows, hidden, hidden + 3) : Mat<T>());
    return kept;
  };
  const Kept quantised = run(true, false), both = run(true, true), h_alone = run(false, true);
  EXPECT_EQ(both.hq, quantised.hq);
  EXPECT_EQ(both.largest, quantised.largest);
  EXPECT_EQ(h_alone.largest, quantised.largest);
  EXPECT_EQ(both.saturated, quantised.saturated);
  EXPECT_GT(quantised.saturated[0], 0u);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < hidden; ++j) {
      const T h = both.h[i * (hidden + 3) + j];
      ASSERT_EQ(h, h_alone.h[i * (hidden + 3) + j]);
      ASSERT_EQ(both.hq[i * hidden + j],
                test::e4m3.round(std::min(448.0f, static_cast<float>(h) * static_cast<float>(factors[1]))));
    }
  }
}

TEST(Fp8Linear, KeepsTheHiddenUnitsThatAreWanted) {
  check_kept_hidden_units<double>();
  check_kept_hidden_units<float>();
}

/// Operands that have their value in 8 bits: then the passes are those of the MLP without rounding, whose gradients
/// finite differences test.
Problem exact_problem() {
  Problem p;
  const auto choose = [](test::Vector<double>& values, std::vector<double> from, unsigned seed) {
    const test::Vector<double> draw = test::random_values(values.size(), seed, 0, 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = from[static_cast<std::size_t>(draw[i] * static_cast<double>(from.size()))];
    }
  };
  choose(p.n, {0, 0, 0, 1, -1}, 11);
  std::ranges::fill(p.w_in, 0);
  for (int i = 0; i < hidden; ++i) p.w_in[i * width + i % width] = i % 3 == 0 ? -1 : 1;
  choose(p.w_out, {-0.5, 0.25, 0.5}, 12);
  std::ranges::fill(p.d_out, 0);
  for (int t = 0; t < rows; ++t) p.d_out[t * width + t % width] = t % 2 == 0 ? 1 : -0.5;
  p.factor = 1;
  p.n_scale = p.w_in_scale = p.h_scale = p.w_out_scale = p.d_out_scale = p.d_hidden_scale = 0.25;
  return p;
}

TEST(Fp8Linear, IsTheMlpWhereNothingIsRounded) {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    Problem p = exact_problem();
    p.format = format;
    const Result result = compute<double>(p);
    test::Vector<double> h(rows * hidden), out(rows * width), d_z(rows * hidden), d_w_in(hidden * width),
        d_w_out(hidden * width), d_n(rows * width);
    const Mat<double> N = matrix(p.n, rows, width), W1 = matrix(p.w_in, hidden, width),
                      W2 = matrix(p.w_out, width, hidden), G = matrix(p.d_out, rows, width);
    linear_relu2_forward<double>({}, matrix(h, rows, hidden), N, W1);
    linear_forward<double>({}, matrix(out, rows, width), matrix(h, rows, hidden), W2);
    linear_backward_weight<double>({}, matrix(d_w_out, width, hidden), G, matrix(h, rows, hidden), Output::overwrite);
    linear_relu2_backward<double>({}, matrix(d_z, rows, hidden), G, W2, matrix(h, rows, hidden));
    linear_backward_weight<double>({}, matrix(d_w_in, hidden, width), matrix(d_z, rows, hidden), N, Output::overwrite);
    linear_backward_input<double>({}, matrix(d_n, rows, width), matrix(d_z, rows, hidden), W1);
    EXPECT_EQ(result.out, out);
    EXPECT_EQ(result.d_w_in, d_w_in);
    EXPECT_EQ(result.d_w_out, d_w_out);
    EXPECT_EQ(result.d_n, d_n);
    EXPECT_NE(*std::ranges::max_element(d_w_in), 0);
    // And these are the gradients of the loss <d_out, out>, but where z = 0.
    const auto loss = [&] {
      linear_relu2_forward<double>({}, matrix(h, rows, hidden), N, W1);
      linear_forward<double>({}, matrix(out, rows, width), matrix(h, rows, hidden), W2);
      double sum = 0;
      for (int i = 0; i < rows * width; ++i) sum += p.d_out[i] * out[i];
      return sum;
    };
    test::check_gradient("w_out", loss, p.w_out, result.d_w_out);
    test::check_gradient("w_in", loss, p.w_in, result.d_w_in, 1e-4);
    test::check_gradient("n", loss, p.n, result.d_n, 1e-4);
  }
}

TEST(Fp8Linear, NotANumberReachesTheOutputs) {
  Problem p;
  p.n[1] = std::numeric_limits<double>::quiet_NaN();
  const Result result = compute<float>(p);
  EXPECT_TRUE(std::isnan(result.out[0]));
  EXPECT_FALSE(std::isnan(result.out[width])) << "another row";
  EXPECT_TRUE(std::isnan(result.d_w_in[1]));
}

TEST(Fp8Scale, HasAFloorAndAFactor) {
  const float zero = 0, two = 2, minus = -3;
  EXPECT_EQ((Fp8Scale<float>{&zero}.value()), static_cast<float>(1e-12 / 448));
  EXPECT_EQ((Fp8Scale<float>{&two, 1.5}.value()), static_cast<float>(3.0 / 448));
  EXPECT_EQ((Fp8Scale<float>{&two, 1, &minus}.value()), static_cast<float>(6.0 / 448));
}

}  // namespace
}  // namespace nanorun::kernels::portable
